"""What a run may use of model calls (M13): set aside before a call, counted after it, for all runs that one budget is over.

Each run under a budget has one row, which it alone writes: what it has used, as its journal says, and what is set aside for the
call that it makes now. A call is made if the rows of all runs below each budget leave room for it. Who finds too little because
others have set it aside waits for their ends; who finds that it is used up ends with `limit:<name>`.

Writing first and reading then, of two processes that take the last room at once at least one sees the other.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from retinue.config import Budget
from retinue.errors import ModelError
from retinue.events import PermissionRequest, RequestClosedEvent
from retinue.messages import AssistantMessage, ToolResult, Usage
from retinue.models.port import ModelRequest
from retinue.ops import PutSpend, Record
from retinue.rows import Allowance, SpendRow

if TYPE_CHECKING:
    from retinue.agent.run import Run

__all__ = ["Left", "active_seconds", "allowance_of", "left", "set_aside", "settle"]

OUTPUT_TOKENS: Final = 4_096
"""What is set aside for an answer whose length nobody limits (`max_tokens`)."""
BYTES_PER_TOKEN: Final = 3
LOOK_SECONDS: Final = 0.25
"""How often it is looked whether another process has used less than it set aside."""

REQUEST_OPENED: Final = PermissionRequest.TYPE
REQUEST_CLOSED: Final = RequestClosedEvent.TYPE

Name = Literal["tokens", "requests", "cost"]
NAMES: Final[tuple[Name, ...]] = ("tokens", "requests", "cost")


class Amount(NamedTuple):
    """What a call may use."""

    tokens: int = 0
    requests: int = 0
    cost: Decimal = Decimal(0)


class Left(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a budget leaves; None where it has no limit. `cost` is in US dollars."""

    tokens: int | None = None
    requests: int | None = None
    cost: Decimal | None = None


def left(allowance: Allowance, rows: Sequence[SpendRow]) -> Left:
    """What has not been used of a budget, whatever is set aside."""
    used = _used(allowance, rows)
    values: dict[str, Any] = {}
    for name in NAMES:
        limit = getattr(allowance, name)
        if limit is not None:
            values[name] = max(limit - getattr(used, name), type(limit)(0))
    return Left(**values)


def allowance_of(run_id: str, budget: Budget) -> Allowance:
    """What a budget lets a run and those below it use of model calls."""
    assert budget.cost is None or isinstance(budget.cost, Decimal)
    return Allowance(run_id=run_id, tokens=budget.tokens, requests=budget.requests, cost=budget.cost)


def _used(allowance: Allowance, rows: Sequence[SpendRow]) -> Amount:
    mine = [row for row in rows if allowance.run_id in row.lineage]
    return Amount(
        sum(row.tokens for row in mine), sum(row.requests for row in mine), sum((row.cost for row in mine), start=Decimal(0))
    )


def _held(allowance: Allowance, rows: Sequence[SpendRow], dead: set[str]) -> Amount:
    mine = [row for row in rows if allowance.run_id in row.lineage and row.owner is not None and row.owner not in dead]
    return Amount(
        sum(row.held_tokens for row in mine),
        sum(row.held_requests for row in mine),
        sum((row.held_cost for row in mine), start=Decimal(0)),
    )


async def set_aside(run: "Run", request: ModelRequest) -> None:
    """Set aside what a call may use, before it is made. To be followed by `settle`, whatever becomes of it.

    Raises:
        ModelError: `limit:tokens`, `limit:requests`, `limit:cost`: it is used up; `unpriced_model`: what the call would cost is
            not known. CancelledError: a stop came while it waited for others.
    """
    wanted, tree, ledger = _estimated(run, request), run.tree, run.tree.services.ledger
    while True:
        changed = tree.next_spend()
        async with tree.spending:
            run.journal.stage_op(PutSpend(_row(run, wanted)))
            await run.journal.flush()
            short = await _short(run, await ledger.spends(run.row.spend_root), wanted)
            if short is None:
                return
            run.journal.stage_op(PutSpend(_row(run, Amount())))
            await run.journal.flush()
        if short.over is not None:
            raise _limit(run, short.allowance, short.over)
        await run.wait_any([changed], LOOK_SECONDS)


def active_seconds(records: Sequence[Record], run_id: str) -> float:
    """How long a run was at work, as its journal says: each attempt from its beginning to its last event, without the time
    between a question and its answer."""
    total, before = 0, None
    for record in records:
        if record.run != run_id:
            continue
        waited = before is not None and before.type == REQUEST_OPENED and record.type == REQUEST_CLOSED
        if before is not None and before.attempt == record.attempt and not waited:
            total += max(record.at - before.at, 0)
        before = record
    return total / 1_000


def settle(run: "Run") -> None:
    """Stage what the run has used, and that nothing is set aside: with the commit of what a call gave."""
    run.journal.stage_op(PutSpend(_row(run, Amount())))
    run.journal.then(run.tree.spent)


class _Short(NamedTuple):
    """A budget that leaves no room. `over`: what of it is used up, None if others have set too much aside for now."""

    allowance: Allowance
    over: Name | None


async def _short(run: "Run", rows: Sequence[SpendRow], wanted: Amount) -> _Short | None:
    services = run.tree.services
    others = {row.owner for row in rows if row.owner is not None and row.owner != services.owner_id}
    dead = {owner for owner in others if not await services.ledger.owner_alive(owner)}
    waits: _Short | None = None
    for allowance in run.row.allowances:
        used, held = _used(allowance, rows), _held(allowance, rows, dead)
        for name in NAMES:
            limit = getattr(allowance, name)
            if limit is None:
                continue
            if getattr(used, name) >= limit or getattr(used, name) + getattr(wanted, name) > limit:
                return _Short(allowance, name)
            if getattr(used, name) + getattr(held, name) > limit:  # its own is among them
                waits = _Short(allowance, None)
    return waits


def _row(run: "Run", held: Amount) -> SpendRow:
    usage, row = run.projection.own_usage, run.row
    return SpendRow(
        run_id=row.run_id,
        root=row.spend_root,
        lineage=row.lineage if row.spends_with is None else (row.spends_with, *row.lineage),
        tokens=usage.input_tokens + usage.output_tokens,
        requests=usage.calls,
        cost=run.projection.own_cost,
        owner=run.tree.services.owner_id if any(held) else None,
        held_tokens=held.tokens,
        held_requests=held.requests,
        held_cost=held.cost,
    )


def _estimated(run: "Run", request: ModelRequest) -> Amount:
    """The most that a call is expected to use: the bytes of what is sent, and as much as the answer may have."""
    size = len(request.envelope.instructions.encode()) + len(request.tail.encode())
    for tool in request.envelope.tools:
        size += len(tool.name) + len(tool.description.encode()) + len(msgspec.json.encode(tool.parameters))
    for entry in request.history:
        message = entry.message
        size += len((message.content if isinstance(message, ToolResult) else message.text).encode())
        if isinstance(message, AssistantMessage):
            size += len((message.reasoning or "").encode()) + sum(len(call.name) + len(call.arguments) for call in message.calls)
    given = size // BYTES_PER_TOKEN + 8 * len(request.history)
    answer = request.envelope.settings.max_tokens or OUTPUT_TOKENS
    usage = Usage(input_tokens=given, output_tokens=answer, calls=1)
    cost = Decimal(0)
    if any(allowance.cost is not None for allowance in run.row.allowances):
        cost = _priced(run, request, usage)
    return Amount(given + answer, 1, cost)


def _priced(run: "Run", request: ModelRequest, usage: Usage) -> Decimal:
    model = run.definition.model
    price = getattr(model, "price", None)
    cost: Decimal | None = None if price is None else price(usage, request.envelope.settings)
    if cost is None:
        raise ModelError(
            f"what model `{model.name}` ({model.provider}) costs is not known, and the run has a budget in money; not asked",
            provider=model.provider,
            model=model.name,
            code="unpriced_model",
            remedy="use a model whose price is known, or limit `tokens` in place of `cost`",
        )
    return cost


def _limit(run: "Run", allowance: Allowance, name: Name) -> ModelError:
    model = run.definition.model
    own = allowance.run_id == run.row.run_id
    whose = "of this run" if own else "of the whole tree" if allowance.run_id == run.row.spend_root else "of a run above it"
    limit = getattr(allowance, name)
    amount = f"{limit} US dollars" if name == "cost" else f"{limit:,} {name if limit > 1 else name.removesuffix('s')}"
    return ModelError(
        f"the budget {whose} is used up: what is left of {amount} is too little for another call; not asked",
        provider=model.provider,
        model=model.name,
        code=f"limit:{name}",
        remedy=f"raise `Budget({name}=…)`, or give a smaller task; the text so far is kept",
    )
