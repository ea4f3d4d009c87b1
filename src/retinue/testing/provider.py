"""A provider on this machine that is as strict as the strictest real one: a loopback HTTP server for tests.

It speaks Chat Completions, streamed and not, follows a script, refuses every transcript that a real provider would refuse,
records what it was asked, and fails on request. `python -m retinue.testing.provider` runs it as a process of its own.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import msgspec
from aiohttp import web

from retinue.clock import Clock, SystemClock
from retinue.errors import RetinueError
from retinue.json_text import dumps
from retinue.models.openai import OpenAIChatModel
from retinue.models.script import Script, ScriptSource, Turn, parse_script
from retinue.testing.provider_record import Gate, Planned, Recorded, read_request, view_of
from retinue.testing.provider_rules import ECHO_RULES, RULES, Rule, refusal
from retinue.testing.provider_schema import form_asked, formed
from retinue.testing.provider_wire import ProviderFault, chunks_of, document_of, half_call

__all__ = ["Gate", "ProviderFault", "Recorded", "StrictProvider"]

TurnFunction: TypeAlias = Callable[[Recorded], Turn | Mapping[str, Any] | str]


class StrictProvider:
    """A fake provider: `async with StrictProvider([...]) as provider:`, then `provider.model()` or `provider.url`.

    Args:
        script: As for `ScriptedModel`, or a function from the recorded request to a turn. Left out, it says "ok".
        rules: What it refuses with 400.
        echo_extras: It adds `provider_state` to messages with calls and refuses them without it (B020).
        api_key: Refuse everybody without this key.
        models: Refuse every other model name with 404.
        clock: For the delays of turns and faults.
        record: Called with each request, as it comes in.

    A fault of the script function (an error that it raises, an answer that is no turn) is answered with HTTP 500 and its words,
    which nobody retries, and raised at the end of the `async with` block if nothing else is.

    The agent and its turn follow from the headers that our adapter sends to this machine; for other clients the agent from
    its `marker` in the system text, and the turn from the assistant messages after the last user message.
    """

    def __init__(
        self,
        script: ScriptSource | TurnFunction | None = None,
        *,
        rules: Sequence[Rule] = RULES,
        echo_extras: bool = False,
        api_key: str | None = None,
        models: Sequence[str] | None = None,
        clock: Clock | None = None,
        record: Callable[[Recorded], None] | None = None,
    ) -> None:
        self._function: TurnFunction | None = None
        self.script = Script(fallback=Turn(text="ok"))
        if callable(script):
            self._function = script
        elif script is not None:
            self.script = parse_script(script)
        self._rules = (*rules, *ECHO_RULES) if echo_extras else tuple(rules)
        self._echo = echo_extras
        self._key = api_key
        self._models = models
        self._clock = clock or SystemClock()
        self._record = record
        self._planned: list[Planned] = []
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._made: list[OpenAIChatModel] = []
        self._closing = asyncio.Event()
        self._script_fault: Exception | None = None
        self.requests: list[Recorded] = []
        """Every request, in order of arrival."""
        self.url = ""
        """The base URL, `http://127.0.0.1:<port>/v1`, while it runs."""

    async def start(self, port: int = 0, extra: Sequence[web.RouteDef] = ()) -> None:
        """Listen on 127.0.0.1. `port` 0 takes a free one."""
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.add_routes([web.post("/v1/chat/completions", self._handle), web.get("/v1/models", self._list), *extra])
        runner = self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        """Let every held request go, close the models made here, and stop listening. Idempotent."""
        self._closing.set()
        for plan in self._planned:
            if plan.gate is not None:
                plan.gate.release()
        while self._made:
            await self._made.pop().close()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop()
        if kind is None and self._script_fault is not None:
            raise self._script_fault

    def model(self, name: str = "fake", **options: Any) -> OpenAIChatModel:
        """A model of this provider; it is closed with the provider."""
        options.setdefault("api_key", self._key)
        model = OpenAIChatModel(name, base_url=self.url, **options)
        self._made.append(model)
        return model

    def fail(
        self,
        fault: ProviderFault | None = None,
        *,
        times: int = 1,
        agent: str | None = None,
        step: int | None = None,
        **fields: Any,
    ) -> None:
        """Let the next requests (of this agent, of this turn) go wrong: a `ProviderFault`, or its fields."""
        planned = fault if fault is not None else msgspec.convert(fields, ProviderFault)
        self._planned += [Planned(agent, step, fault=planned) for _ in range(times)]

    def hold(self, *, agent: str | None = None, step: int | None = None) -> Gate:
        """Keep the next request (of this agent, of this turn) waiting until the gate is released."""
        gate = Gate()
        self._planned.append(Planned(agent, step, gate=gate))
        return gate

    async def arrived(self, count: int) -> Recorded:
        """Wait until so many requests have come; the last of these."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def disconnected(self, count: int = 1) -> None:
        """Wait until so many clients have gone away in the middle of their answer."""
        async with self._changed:
            await self._changed.wait_for(lambda: sum(request.disconnected for request in self.requests) >= count)

    @property
    def connections(self) -> int:
        """How many connections the requests have come over."""
        return len({request.peer for request in self.requests})

    @property
    def refused(self) -> list[Recorded]:
        """The requests that broke a rule."""
        return [request for request in self.requests if request.refused is not None]

    def asked(self, agent: str) -> list[Recorded]:
        """The requests of one agent."""
        return [request for request in self.requests if request.agent == agent]

    async def _list(self, request: web.Request) -> web.Response:
        names = self._models or [self.script.model]
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        recorded = read_request(await request.read(), request.headers, len(self.requests) + 1, self.script)
        if request.transport is not None:
            recorded.peer = str(request.transport.get_extra_info("peername"))
        self.requests.append(recorded)
        if self._record is not None:
            self._record(recorded)
        await self._notify()
        try:
            response = await self._respond(request, recorded)
        except asyncio.CancelledError:
            await self._gone(recorded)
            raise
        except ConnectionError:
            await self._gone(recorded)
            return web.Response()  # to nobody
        recorded.answered = True
        await self._notify()
        return response

    async def _gone(self, recorded: Recorded) -> None:
        recorded.disconnected = not self._closing.is_set()
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _plan(self, recorded: Recorded) -> tuple[Gate | None, ProviderFault]:
        gate, fault = None, None
        for plan in list(self._planned):
            if plan.fits(recorded) and (gate if plan.gate else fault) is None:
                self._planned.remove(plan)
                gate, fault = plan.gate or gate, plan.fault or fault
        return gate, fault or ProviderFault()

    async def _respond(self, request: web.Request, recorded: Recorded) -> web.StreamResponse:
        gate, fault = self._plan(recorded)
        if gate is not None:
            gate.arrived.set()
            await gate.opened.wait()
        if (early := self._refuse(recorded)) is not None:
            return early
        turn = self._turn(recorded)
        if isinstance(turn, web.Response):
            return turn
        if turn.fault is not None:
            fault = msgspec.convert(turn.fault, ProviderFault)
        if (failed := _failed(fault)) is not None:
            return failed
        view = view_of(recorded)
        if turn.has_templates() and self._function is None:
            turn = turn.filled(view)
        recorded.turn = turn
        schema = form_asked(recorded.body)
        if schema is not None and "free_text" not in fault.shape:
            turn = formed(turn, schema, recorded.step)
        if turn.delay:
            await self._clock.sleep(turn.delay)
        made: dict[str, Any] = {
            "step": recorded.step,
            "number": recorded.number,
            "model": recorded.body.get("model"),
            "shape": fault.shape,
            "echo": self._echo,
        }
        usage = turn.usage_of(view)
        if not recorded.body.get("stream") or "document" in fault.shape:
            return web.Response(body=document_of(turn, usage, **made), content_type="application/json")
        return await self._stream(request, chunks_of(turn, usage, **made), turn, fault)

    def _refuse(self, recorded: Recorded) -> web.Response | None:
        if self._key is not None and recorded.headers.get("authorization") != f"Bearer {self._key}":
            return _error(401, f"Incorrect API key provided: {recorded.headers.get('authorization')}", "invalid_api_key")
        if not recorded.valid:
            return _error(400, "We could not parse the JSON body of your request", "invalid_json")
        if self._models is not None and recorded.body.get("model") not in self._models:
            return _error(404, f"The model `{recorded.body.get('model')}` does not exist", "model_not_found")
        broken = refusal(recorded.body, self._rules)
        if broken is None:
            return None
        recorded.refused = (broken[0].id, broken[1])
        return _error(400, broken[1], broken[0].id)

    def _turn(self, recorded: Recorded) -> Turn | web.Response:
        if self._function is not None:
            return self._called(self._function, recorded)
        turn = self.script.turn(recorded.agent, recorded.step)
        if turn is None:
            return _error(400, f"the script has no turn {recorded.step} for agent `{recorded.agent}`", "no_turn")
        if turn.error is not None:
            return _error(turn.error.status or 500, turn.error.message, turn.error.code)
        return turn

    def _called(self, function: TurnFunction, recorded: Recorded) -> Turn | web.Response:
        try:
            reply = function(recorded)
            return reply if isinstance(reply, Turn) else parse_script([reply]).agents["*"].turns[0]
        except Exception as error:  # noqa: BLE001 - the author's own; it is told to the client and raised at the end
            self._script_fault = self._script_fault or error
            words = f"the script function failed for agent `{recorded.agent}`, turn {recorded.step}: {_told(error)}"
            return _error(500, words, "script_failed", headers={"x-should-retry": "false"})

    async def _stream(self, request: web.Request, events: list[bytes], turn: Turn, fault: ProviderFault) -> web.StreamResponse:
        cut = half_call(events) if fault.half_call else fault.cut_after
        if cut == 0:
            return _hang_up(request, web.Response())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **fault.headers})
        await response.prepare(request)
        for sent, event in enumerate(events):
            if cut is not None and sent >= cut:
                return _hang_up(request, response)
            if fault.hang_after is not None and sent >= fault.hang_after:
                await self._closing.wait()
                return response
            size = fault.piece or len(event)
            for at in range(0, len(event), size):
                await response.write(event[at : at + size])
                if fault.piece_delay:
                    await self._clock.sleep(fault.piece_delay)
                elif fault.piece:
                    await asyncio.sleep(0)
            if turn.chunk_delay:
                await self._clock.sleep(turn.chunk_delay)
        await response.write_eof()
        return response


def _told(error: Exception) -> str:
    """An error of the author's: those of ours say in their first words what they are."""
    return str(error) if isinstance(error, RetinueError) else f"{type(error).__name__}: {error}"


def _hang_up(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Close the connection as it is. aiohttp finds it gone when it wants to end the response."""
    if request.transport is not None:
        request.transport.close()
    return response


def _failed(fault: ProviderFault) -> web.Response | None:
    """The response of a fault that answers no turn at all."""
    headers = dict(fault.headers)
    if fault.retry_after is not None:
        headers["Retry-After"] = f"{fault.retry_after:g}"
    if fault.redirect is not None:
        return web.Response(status=307, headers={**headers, "Location": fault.redirect})
    if fault.body is not None:
        raw = fault.body.encode("utf-8", "surrogateescape")
        return web.Response(status=fault.status, headers={**headers, "Content-Type": fault.content_type}, body=raw)
    if fault.status != 200:
        return _error(fault.status, fault.message, fault.code, kind=fault.error_type, headers=headers)
    return None


def _error(
    status: int, message: str, code: str | None, *, kind: str = "invalid_request_error", headers: Mapping[str, str] | None = None
) -> web.Response:
    body = dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


if __name__ == "__main__":
    from retinue.testing.provider_process import main

    main()
