"""Why anything is in its state, who holds it, what it waits for, and what moves it on: one sentence for each state and reason.

Pure functions over rows (`explain` reads them). The tables are complete: a state without an entry is an error when it is
looked up, and a test looks up every one.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from retinue.rows import InvocationRow, OwnerRow, RequestRow, RunRow, ThreadRow
from retinue.states import InvocationState, RequestState, RunState

__all__ = [
    "FAILURES",
    "Explanation",
    "Facts",
    "explain_invocation",
    "explain_owner",
    "explain_request",
    "explain_run",
    "explain_thread",
]


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One thing of a ledger, explained.

    `text` is one sentence: state and reason. `waits_for`, `held_by` and `command` (the words after `retinue` that move it on)
    are empty where there is nothing to say; `python` does the same from code. `stop` are the words that end its whole tree,
    `stuck` those that take it from a process that is at work as it seems, for the case that it is not.
    `since` is when it came into this state, in milliseconds since the epoch. `related` are ids to ask about next.
    """

    id: str
    kind: str
    state: str
    text: str
    reason: str | None = None
    waits_for: str = ""
    held_by: str = ""
    since: int = 0
    command: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    python: str = ""
    related: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside a row: its owner, whether that lives and whether it was stopped (SIGSTOP), the cancel intent on it,
    open requests and unfinished runs of its tree."""

    owner: OwnerRow | None = None
    alive: bool = False
    stopped: bool = False
    intent: str | None = None
    requests: tuple[RequestRow, ...] = ()
    unfinished: tuple[RunRow, ...] = ()


FAILURES: Final[Mapping[str, tuple[str, str]]] = {
    "limit:max_iters": ("it used all its turns without coming to an end", "raise `max_iters` or split the task"),
    "limit:max_tokens": ("its answer was cut at the model's output limit", "raise `max_tokens` or ask for less"),
    "limit:tokens": ("its budget of tokens was used up", "raise `Budget(tokens=…)` or split the task"),
    "limit:requests": ("its budget of model calls was used up", "raise `Budget(requests=…)` or split the task"),
    "limit:cost": ("its budget of money was used up", "raise `Budget(cost=…)` or split the task"),
    "limit:seconds": ("the time of its budget was used up", "raise `Budget(seconds=…)` or split the task"),
    "limit:timeout_seconds": ("its time limit was reached", "raise `timeout_seconds` or split the task"),
    "content_filter": ("the provider withheld the answer", "rephrase the task"),
    "empty_result": ("the model answered with nothing", "ask again, or look at the model's settings"),
    "invalid_output": ("its answer never had the form that was asked for", "make the type or the task simpler"),
    "unreachable": ("the model's server could not be reached", "start the server or check the network, then run again"),
    "timeout": ("the model did not answer in time", "run again, or raise `idle_timeout`"),
    "stream_broken": ("the model's answer broke off", "run again"),
    "authentication": ("the provider refused the key", "check the key, then run again"),
    "missing_key": ("there was no key for the provider", "set the key, then run again"),
    "model_not_found": ("the provider has no such model", "check the model's name"),
    "rate_limited": ("the provider limits the calls", "wait, or run fewer children at once (`Limits(max_children=…)`)"),
    "overloaded": ("the provider failed or is overloaded", "run again later, or use another model"),
    "context_overflow": ("the conversation is too long for the model", "go on in a new session, or use another model"),
    "bad_request": ("the provider refused the request", "look at the message in its journal, and at the model's settings"),
    "answer_too_long": ("the model came to no end in its answer", "set `max_tokens`, or use a model that stops"),
    "unpriced_model": ("what the model costs is not known", "use a model whose price is known, or limit tokens"),
    "bad_response": ("the provider gave no usable answer", "check that its address is that of an OpenAI-compatible server"),
    "model_raised": ("the model's or a middleware's own code raised an error", "mend the code that raised it"),
    "middleware_raised": ("a middleware raised an error", "mend the middleware"),
    "on_request_raised": ("`on_request` raised an error, so that a request had no answer", "mend `on_request`, then run again"),
}
"""What a reason of a failed run means, and what to do."""


def explain_run(row: RunRow, facts: Facts) -> Explanation:
    """A run."""
    who = f"run `{row.run_id}` of agent `{row.agent_id}`"
    said = _RUN[row.state](row, facts, who)
    stop = () if row.state.terminal or facts.intent is not None else ("cancel", row.root)
    return msgspec.structs.replace(
        said, id=row.run_id, kind="run", state=row.state.value, reason=row.reason, since=row.updated_at, stop=stop
    )


def _run_running(row: RunRow, facts: Facts, who: str) -> Explanation:
    held, waits = _holder(row.owner, facts), _waits_for_children(row, facts)
    go_on = ("resume", row.root)
    if facts.alive:
        text = f"{_cap(who)} is at work, and nothing needs to be done"
        if facts.intent is not None:
            text = f"{_cap(who)} is being stopped ({facts.intent})"
            waits = waits or "what it has begun to come to an end, at most its grace (`Limits(stop_grace=…)`)"
        if facts.stopped:
            text = f"{_cap(who)} stands still: its process is stopped, and goes on when it is woken (`kill -CONT`)"
            waits = waits or "its process to be woken, or somebody to take it over"
        return _of_living(row.root, facts, _said(text, held_by=held, waits_for=waits))
    if facts.intent is not None:
        text = f"{_cap(who)} was to be stopped ({facts.intent}), and its process ended before it was; nothing of it runs"
        waits = "somebody to bring it to its end, as cancelled"
    else:
        text, waits = f"{_cap(who)} is interrupted: nothing of it runs, and all that it did is kept", "somebody to go on with it"
    return _said(text, held_by=held, waits_for=waits, command=go_on, python=f"await agent.resume({row.root!r})")


def _of_living(root: str, facts: Facts, said: Explanation) -> Explanation:
    """A run is taken from a process that is stopped. From one that works only if that is stuck, which nobody here can know."""
    words = ("resume", root, "--take-over")
    python = f"await agent.resume({root!r}, take_over=True)"
    if facts.stopped:
        return msgspec.structs.replace(said, command=words, python=python)
    return msgspec.structs.replace(said, stuck=words, python=f"{python}  # only if that process is stuck")


def _run_waiting(row: RunRow, facts: Facts, who: str) -> Explanation:
    go_on = ("resume", row.root)
    if facts.intent is not None:
        text = f"{_cap(who)} was to be stopped ({facts.intent}) while it waited"
        return _said(text, waits_for="somebody to bring it to its end, as cancelled", command=go_on, python=_resume(row))
    requests = facts.requests
    if requests:
        first = requests[0].request_id
        asks = ", ".join(f"`{one.tool}` ({one.request_id})" for one in requests[:5])
        more = f" and {len(requests) - 5} more" if len(requests) > 5 else ""
        return _said(
            f"{_cap(who)} waits for a person; no process holds it",
            waits_for=f"an answer to: {asks}{more}",
            command=("answer", first, "allow"),
            python=f"await agent.answer({first!r}, allow=True)",
            related=tuple(one.request_id for one in requests),
        )
    text = f"{_cap(who)} waited for a person, who has answered; nobody has gone on with it yet"
    return _said(text, waits_for="somebody to go on with it", command=go_on, python=_resume(row))


def _run_completed(row: RunRow, facts: Facts, who: str) -> Explanation:
    return _ended(row, facts, f"{_cap(who)} is completed")


def _run_failed(row: RunRow, facts: Facts, who: str) -> Explanation:
    what, remedy = _failure(row.reason)
    return _ended(row, facts, f"{_cap(who)} failed: {what} ({row.reason or 'no reason was given'}); to do: {remedy}")


def _run_cancelled(row: RunRow, facts: Facts, who: str) -> Explanation:
    return _ended(
        row, facts, f"{_cap(who)} was stopped ({row.reason or facts.intent or 'no reason was given'}); what it did is kept"
    )


def _ended(row: RunRow, facts: Facts, text: str) -> Explanation:
    """A terminal state. Children that are still unfinished below it are named."""
    left = tuple(one.run_id for one in facts.unfinished if row.run_id in one.lineage and one.run_id != row.run_id)
    if left:
        text = f"{text}; below it {len(left)} {'run is' if len(left) == 1 else 'runs are'} not finished"
    if row.run_id != row.root:
        return _said(text, related=(*left, row.root))
    thread = () if row.key.thread == "main" else ("--thread", row.key.thread)
    command = ("run", "--session", row.key.session, *thread, "TASK")
    return _said(text, command=command, python="await result.thread.run('…')", related=left)


_RUN: Final[dict[RunState, Callable[[RunRow, Facts, str], Explanation]]] = {
    RunState.RUNNING: _run_running,
    RunState.WAITING: _run_waiting,
    RunState.COMPLETED: _run_completed,
    RunState.FAILED: _run_failed,
    RunState.CANCELLED: _run_cancelled,
}


def explain_invocation(row: InvocationRow, child: RunRow | None, facts: Facts) -> Explanation:
    """A delegation. `child` is its child's run, `facts` are about that; of one that is stopping, about its own owner."""
    who = f"delegation `{row.invocation_id}` of `{row.parent_run}` to `{row.child_agent_id}`"
    below = None if child is None else explain_run(child, facts)
    said = msgspec.structs.replace(_INVOCATION[row.state](row, who), held_by=_holder(row.owner, facts))
    if below is not None and not row.state.terminal:
        said = msgspec.structs.replace(
            said,
            held_by=below.held_by,
            waits_for=below.waits_for or said.waits_for,
            command=below.command,
            stop=below.stop,
            stuck=below.stuck,
            python=below.python,
            text=f"{said.text}; {below.text[0].lower()}{below.text[1:]}",
        )
    return msgspec.structs.replace(
        said,
        id=row.invocation_id,
        kind="delegation",
        state=row.state.value,
        reason=row.reason,
        since=row.updated_at,
        related=(row.child_run, row.parent_run),
    )


def _invocation_failed(row: InvocationRow, who: str) -> Explanation:
    what, remedy = _failure(row.reason)
    return _said(
        f"{_cap(who)} failed: {what} ({row.reason or 'no reason was given'}), which the parent was told; to do: {remedy}"
    )


_INVOCATION: Final[dict[InvocationState, Callable[[InvocationRow, str], Explanation]]] = {
    InvocationState.PENDING: lambda row, who: _said(
        f"{_cap(who)} has been given, and no process has begun with it", waits_for="a process that has its agent to start"
    ),
    InvocationState.RUNNING: lambda row, who: _said(f"{_cap(who)} is under way", waits_for="its child to end"),
    InvocationState.WAITING: lambda row, who: _said(
        f"{_cap(who)} waits, because its child waits for a person", waits_for="an answer to a request of its child"
    ),
    InvocationState.STOPPING: lambda row, who: _said(
        f"{_cap(who)} is being stopped ({row.reason or 'no reason was given'}); it can write nothing any more",
        waits_for="a call that cannot be interrupted to return, or its process to end",
    ),
    InvocationState.COMPLETED: lambda row, who: _said(f"{_cap(who)} is completed, and the parent has its result"),
    InvocationState.FAILED: _invocation_failed,
    InvocationState.CANCELLED: lambda row, who: _said(
        f"{_cap(who)} was stopped ({row.reason or 'no reason was given'}), which the parent was told"
    ),
}


def explain_request(row: RequestRow, facts: Facts) -> Explanation:
    """A question to a person. `facts` are about the root of its tree."""
    who = f"request `{row.request_id}`: may agent `{row.agent_id}` call `{row.tool}`?"
    said = _REQUEST[row.state](row, facts, _cap(who))
    stop = ("cancel", row.root_run) if row.state is RequestState.OPEN else ()
    return msgspec.structs.replace(
        said,
        id=row.request_id,
        kind="request",
        state=row.state.value,
        reason=row.answer,
        since=row.answered_at or row.opened_at,
        stop=stop,
        related=(row.root_run,),
    )


def _request_open(row: RequestRow, facts: Facts, who: str) -> Explanation:
    held = _holder(facts.owner.owner_id, facts) if facts.owner is not None else ""
    text = f"{who} It is open"
    if facts.owner is not None and not facts.alive:
        text = f"{text}, and the process that asked it has ended"
    return _said(
        text,
        held_by=held,
        waits_for="an answer, from any process",
        command=("answer", row.request_id, "allow"),
        python=f"await agent.answer({row.request_id!r}, allow=True)",
    )


def _request_answered(row: RequestRow, facts: Facts, who: str) -> Explanation:
    by = f" by {row.by}" if row.by else ""
    kept = ", for the rest of the session" if row.remember == "session" else ""
    text = f"{who} It was answered{by}: {row.answer or 'no answer was kept'}{kept}"
    if facts.unfinished and not facts.alive:
        return _said(
            text, waits_for="somebody to go on with its run", command=("resume", row.root_run), python=_resume_of(row.root_run)
        )
    return _said(text)


_REQUEST: Final[dict[RequestState, Callable[[RequestRow, Facts, str], Explanation]]] = {
    RequestState.OPEN: _request_open,
    RequestState.ANSWERED: _request_answered,
    RequestState.EXPIRED: lambda row, facts, who: _said(f"{who} Nobody answered in time, which counts as a no"),
    RequestState.CANCELLED: lambda row, facts, who: _said(f"{who} It was withdrawn, because its run was stopped"),
    RequestState.ABANDONED: lambda row, facts, who: _said(f"{who} It was given up, because its run can no longer use an answer"),
}


def explain_owner(row: OwnerRow, alive: bool, runs: tuple[RunRow, ...], *, stopped: bool = False) -> Explanation:
    """A process that holds leases, and the runs that it holds."""
    facts = Facts(owner=row, alive=alive, stopped=stopped)
    who = _holder(row.owner_id, facts)
    state = "alive" if alive else "dead"
    roots = tuple(dict.fromkeys(run.root for run in runs))
    if not runs:
        text, command = f"{_cap(who)} holds no run", tuple[str, ...]()
    elif alive:
        text, command = f"{_cap(who)} drives {_count(len(roots), 'tree')}", ()
    else:
        text = f"{_cap(who)} has left {_count(len(roots), 'tree')} interrupted"
        command = ("resume", roots[0])
    waits = "" if alive or not roots else "somebody to go on with what it left"
    said = Explanation(
        id=row.owner_id,
        kind="owner",
        state=state,
        text=text,
        waits_for=waits,
        since=row.started_at,
        command=command,
        related=roots,
    )
    return _of_living(roots[0], facts, said) if alive and roots else said


def explain_thread(row: ThreadRow, last: RunRow | None, facts: Facts) -> Explanation:
    """A conversation, by its last run."""
    place = f"`{row.key.thread}` of session `{row.key.session}`" + (f" of user `{row.key.user}`" if row.key.user else "")
    about = f"Thread {place} ({row.head} records, generation {row.generation}, agent `{row.default_agent_id}`)"
    name = f"{row.key.session}/{row.key.thread}"
    if last is None:
        return Explanation(id=name, kind="thread", state="idle", text=f"{about} has never had a run", since=row.updated_at)
    said = explain_run(last, facts)
    text = f"{about}; its last run: {said.text.removeprefix('Run ')}"
    return msgspec.structs.replace(said, id=name, kind="thread", text=text, related=(last.run_id, *said.related))


# ---------------------------------------------------------------------- words


def _said(
    text: str,
    *,
    waits_for: str = "",
    held_by: str = "",
    command: tuple[str, ...] = (),
    python: str = "",
    related: tuple[str, ...] = (),
) -> Explanation:
    return Explanation(
        id="", kind="", state="", text=text, waits_for=waits_for, held_by=held_by, command=command, python=python, related=related
    )


def _failure(reason: str | None) -> tuple[str, str]:
    return FAILURES.get(reason or "", ("see its journal for what happened", "look at it with `retinue threads show`"))


def _holder(owner_id: str | None, facts: Facts) -> str:
    """Who holds a lease: process and host, alive or dead."""
    if owner_id is None:
        return ""
    if facts.owner is None:
        return f"owner `{owner_id}`, which is gone"
    command = f" ({facts.owner.command})" if facts.owner.command else ""
    state = "stopped" if facts.stopped else "alive" if facts.alive else "dead"
    return f"process {facts.owner.pid} on `{facts.owner.host}`{command}, which is {state}"


def _waits_for_children(row: RunRow, facts: Facts) -> str:
    children = [one for one in facts.unfinished if one.lineage[:-1] == row.lineage]
    names = ", ".join(f"`{one.agent_id}` ({one.run_id})" for one in children[:5])
    return f"{_count(len(children), 'child', 'children')}: {names}" if children else ""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _resume(row: RunRow) -> str:
    return _resume_of(row.root)


def _resume_of(run_id: str) -> str:
    return f"await agent.resume({run_id!r})"


def _cap(text: str) -> str:
    return text[0].upper() + text[1:]
