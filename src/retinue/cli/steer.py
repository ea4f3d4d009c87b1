"""`retinue answer` and `retinue cancel`: a question answered, a run stopped, without a terminal of its own."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from retinue.cli.exits import Exit
from retinue.cli.jsonl import EventLines
from retinue.cli.places import existing_ledger, find_run
from retinue.cli.run import agent_of
from retinue.cli.running import Session, drive, run_async
from retinue.cli.text import one_line
from retinue.cli.viewers import choose_viewer
from retinue.errors import ConfigurationError, RetinueError, UnknownId

if TYPE_CHECKING:
    from retinue.harness import Runtime
    from retinue.rows import RequestRow, RunRow

__all__ = ["answer_request", "cancel_run", "cancelled"]


def answer_request(
    *,
    request: str,
    answer: str,
    workspace: Path,
    ledger: str | None,
    remember: bool,
    note: str,
    model: str | None,
    trust: bool,
    as_json: bool,
    quiet: bool,
) -> Exit:
    """Answer a question and go on with its run, if nobody else does. See `retinue answer --help`."""
    viewer = choose_viewer(as_json=as_json, quiet=quiet, describe=EventLines().describe)
    kept = "session" if remember else "once"

    async def work() -> Exit:
        from retinue.harness import Runtime
        from retinue.harness.takeover import find_lead

        async with Runtime(ledger=existing_ledger(ledger, workspace)) as runtime:
            row = await _request(runtime, request)
            given = _given(row, answer, note)
            root = await find_run(runtime.ledger, row.root_run)
            lead = await find_lead(runtime, row.run_id)
            driven = await _driven_by(runtime, lead)
            if driven or root.workspace is None:
                await _record(runtime, row, given, remember=kept)
                goes_on = (
                    f"{driven} goes on with it"
                    if driven
                    else f"its own code goes on with it: `await agent.resume({lead.run_id!r})`"
                )
                if as_json:
                    said = {"requestId": row.request_id, "answer": answer, "runId": lead.run_id, "drivenBy": driven or None}
                    print(json.dumps(said))
                print(f"answered: {one_line(answer, 80)}; run {lead.run_id}: {goes_on}", file=sys.stderr)
                return Exit.COMPLETED
        agent = await agent_of(root, lead, model=model, ledger=_url(ledger, workspace), trust=trust)
        async with agent:
            await agent._definition_of(lead)  # before anything is recorded: it has to be gone on with here
            await _record(agent.runtime, row, given, remember=kept)
            events = agent.resume_stream(lead.run_id, background=True)
            session = Session(workspace=workspace, ledger=ledger)
            return await drive(agent, events, viewer, session, resumed=root.run_id, task=lead.run_id)

    return run_async(work)


def cancel_run(*, run_or_session: str, workspace: Path, ledger: str | None, reason: str, as_json: bool) -> Exit:
    """Stop a run and everything below it. See `retinue cancel --help`."""

    async def work() -> Exit:
        from retinue.harness import Runtime

        async with Runtime(ledger=existing_ledger(ledger, workspace)) as runtime:
            row = await find_run(runtime.ledger, run_or_session)
            if row.state.terminal:
                raise UnknownId(
                    f"run `{row.run_id}` has ended: {row.state}", code="run_ended", remedy="there is nothing left to stop"
                )
            after = await cancelled(runtime, row, reason)
            driven = "" if after is None else await _driven_by(runtime, after)
        state = "unknown" if after is None else after.state.value
        if as_json:
            print(json.dumps({"runId": row.run_id, "session": row.key.session, "state": state, "drivenBy": driven or None}))
        elif driven:
            what = "has not carried it out yet; it does not run, or is busy with what cannot be stopped"
            print(f"stop of run {row.run_id} recorded: {one_line(driven, 200)} {what}")
        else:
            print(f"run {row.run_id} is {state}; what was done is kept in session {one_line(row.key.session, 100)}")
        return Exit.COMPLETED

    return run_async(work)


async def cancelled(runtime: "Runtime", row: "RunRow", reason: str) -> "RunRow | None":
    """Stop a run and everything below it: its row as it is when that is done, or the grace of whoever drives it is over."""
    from retinue.harness import Agent
    from retinue.models.scripted import ScriptedModel

    agent = Agent(row.path[0], model=ScriptedModel([]), runtime=runtime)  # asked for nothing: none of its code runs
    await agent.cancel(row.run_id, reason=reason, user_id=row.key.user or None)
    return await _ended(runtime, row.run_id)


async def _ended(runtime: "Runtime", run_id: str) -> "RunRow | None":
    """The run's row, as soon as whoever drives it has ended it; as it is then if that takes more than its grace."""
    from retinue.harness.watching import POLL_SECONDS

    wait = runtime.limits.stop_grace + 3 * POLL_SECONDS
    until = runtime.clock.monotonic() + wait
    while True:
        row = await runtime.ledger.run(run_id)
        if row is None or row.state.terminal or runtime.clock.monotonic() > until or not await _driven_by(runtime, row):
            return row
        await runtime.clock.sleep(POLL_SECONDS / 5)


def _url(ledger: str | None, workspace: Path) -> str:
    """The ledger's place, also where the run's own workspace is another folder than the one that was named."""
    from retinue.cli.places import ledger_url

    return str(ledger_url(ledger, workspace))


async def _request(runtime: "Runtime", request_id: str) -> "RequestRow":
    """The request, whoever's it is: who reads the file may answer.

    Raises:
        UnknownId: there is none. RetinueError: `already_answered`.
    """
    from retinue.states import RequestState

    row = await runtime.ledger.request(request_id) if request_id.isascii() else None
    if row is None:
        raise UnknownId(
            f"there is no request `{one_line(request_id, 80)}` in this ledger",
            remedy="`retinue explain SESSION` names the open ones",
        )
    if row.state is not RequestState.OPEN:
        raise RetinueError(
            f"request `{request_id}` is already {row.state.value}",
            code="already_answered",
            remedy="nothing needs to be done; the first answer holds",
        )
    return row


def _given(row: "RequestRow", answer: str, note: str) -> tuple[bool, str]:
    """What the words on the command line answer.

    Raises:
        ConfigurationError: `invalid_argument`.
    """
    from retinue.harness.requests import given_answer

    said = answer.strip()
    if row.kind == "question":
        text = None if said in ("", "deny") else answer
        return given_answer(row, allow=False if said == "deny" else None, text=text, note=note)
    if said not in ("allow", "deny"):
        raise ConfigurationError(
            f"`{one_line(said, 80)}` is no answer to a permission",
            code="invalid_argument",
            remedy=f"`retinue answer {row.request_id} allow`, or `deny`",
        )
    return given_answer(row, allow=said == "allow", text=None, note=note)


async def _record(runtime: "Runtime", row: "RequestRow", given: tuple[bool, str], *, remember: str) -> None:
    from retinue.harness.requests import answer_request as record

    kept: Literal["once", "session"] = "session" if remember == "session" else "once"
    await record(runtime, row.request_id, user=row.root.user, given=given, remember=kept, by="retinue answer")


async def _driven_by(runtime: "Runtime", root: "RunRow") -> str:
    """The process that is alive and drives the run, in words; nothing if there is none."""
    from retinue.states import RunState

    if root.state is not RunState.RUNNING or root.owner in (None, runtime._owner_id):
        return ""
    assert root.owner is not None
    if not await runtime.ledger.owner_alive(root.owner):
        return ""
    owner = await runtime.ledger.owner(root.owner)
    return f"process {owner.pid} on {owner.host}" if owner is not None else "another process"
