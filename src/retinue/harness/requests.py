"""Requests to people: as they are shown, and how an answer gets to the run that waits for it (D-28)."""

import inspect
import logging
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from retinue.agent.next_step import AnswerMail
from retinue.errors import ConfigurationError, LedgerConflict, RetinueError, UnknownId
from retinue.events import PermissionRequest
from retinue.harness.runtime import Runtime
from retinue.ids import new_id
from retinue.ops import Op, PutMail, PutRequest, PutState
from retinue.permissions.gate import remembered_name
from retinue.rows import Mail, RequestRow
from retinue.states import RequestState

if TYPE_CHECKING:
    from retinue.harness.agent import Agent

__all__ = ["answer_request", "ask_callback", "find_request", "given_answer", "request_view"]

_log: Final = logging.getLogger("retinue")


def request_view(row: RequestRow) -> PermissionRequest:
    """The frozen view of a request's row: the same as the event that was shown when it was opened."""
    return PermissionRequest(
        path=row.path,
        invocations=row.invocations,
        key=row.key,
        run_id=row.run_id,
        at=row.opened_at,
        request_id=row.request_id,
        kind=row.kind,
        call=row.call,
        tool=row.tool,
        agent_id=row.agent_id,
        arguments=row.arguments,
        description=row.description,
        options=row.options,
    )


async def find_request(runtime: Runtime, request_id: str, *, user: str) -> RequestRow:
    """A request of this user.

    Raises:
        UnknownId: `user` has no such request.
    """
    row = await runtime.ledger.request(request_id) if request_id.isascii() else None
    if row is None or row.root.user != user:
        raise UnknownId(f"there is no request `{request_id}`", remedy="`await agent.requests(session_id)` lists the open ones")
    return row


def given_answer(row: RequestRow, *, allow: bool | None, text: str | None, note: str) -> tuple[bool, str]:
    """What is recorded of an answer: whether it is a yes, and what is told to the model. The answer to a question is its text.

    Raises:
        ConfigurationError: `invalid_argument`: it is no answer to that.
    """
    if row.kind == "question" and text is None and allow is not False:
        raise ConfigurationError(
            f"request `{row.request_id}` is a question, and has no `text` for an answer",
            code="invalid_argument",
            remedy="give `text=…`, or `allow=False` where there is no answer",
        )
    if row.kind != "question" and text is not None:
        raise ConfigurationError(
            f"request `{row.request_id}` asks for a permission, and `text` is no answer to that",
            code="invalid_argument",
            remedy="give `allow=True` or `allow=False`; what the model is to know of a denial is `note`",
        )
    return (True, text) if text is not None else (allow is True, note)


async def answer_request(
    runtime: Runtime,
    request_id: str,
    *,
    user: str,
    given: tuple[bool, str],
    remember: Literal["once", "session"],
    by: str,
) -> RequestRow:
    """Record an answer (see `given_answer`) and put it into the asking thread's mailbox, in one commit. The first answer wins.

    Raises:
        UnknownId: `user` has no such request.
        RetinueError: `already_answered`: it is no longer open.
    """
    row = await find_request(runtime, request_id, user=user)
    allow, note = given
    answer: Literal["allow", "deny"] = "allow" if allow else "deny"
    note, by = runtime._redactor.text(note), runtime._redactor.text(by)
    now = runtime.clock.now_ms()
    answered = msgspec.structs.replace(
        row, state=RequestState.ANSWERED, answer=answer, remember=remember, note=note, by=by, answered_at=now
    )
    body = AnswerMail(request_id=request_id, answer=answer, by=by, remember=remember, note=note)
    mail = Mail(mail_id=new_id("mail"), kind="answer", body=msgspec.Raw(msgspec.json.encode(body)), at=now)
    ops: list[Op] = [PutRequest(answered, RequestState.OPEN), PutMail(row.key, mail)]
    if remember == "session" and allow:
        name = remembered_name(row.tool, row.agent_id)
        ops.append(PutState(row.root.user, row.root.session, name, msgspec.Raw(b'"allow"')))
    try:
        await runtime.ledger.commit(ops)
    except LedgerConflict as conflict:
        current = await runtime.ledger.request(request_id)
        state = row.state.value if current is None else current.state.value
        raise RetinueError(
            f"request `{request_id}` is already {state}",
            code="already_answered",
            remedy="nothing needs to be done; the first answer holds",
        ) from conflict
    return answered


async def ask_callback(agent: "Agent", request: PermissionRequest) -> None:
    """Ask `on_request` and record what it says. Only True allows, only a text answers a question; what is neither denies, and
    says so."""
    assert agent._on_request is not None
    allowed: Any = agent._on_request(request)
    if inspect.isawaitable(allowed):  # a plain function may answer as well
        allowed = await allowed
    if request.kind == "question" and isinstance(allowed, str) and allowed.strip():
        await agent.answer(request, text=allowed, by="on_request")
        return
    note = ""
    wanted = "a text" if request.kind == "question" else "True or False"
    if request.kind == "question" or not isinstance(allowed, bool):
        note = f"`on_request` returned {type(allowed).__name__}, not {wanted}, which counts as a denial"
        _log.warning("request %s for `%s` was denied: %s", request.request_id, request.tool, note)
    await agent.answer(request, allow=allowed is True and request.kind != "question", note=note, by="on_request")
