"""Calling function tools: on the loop or in a thread, with errors as results and cancellation as cancellation."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from retinue.config import Verdict
from retinue.errors import ConfigurationError
from retinue.states import ResultStatus
from retinue.tools import FunctionTool, Tool, ToolContext, ToolDeclaration, ToolError, ToolThreads, function_tool, tool

pytestmark = pytest.mark.anyio
Make = Callable[..., ToolContext]

trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="")


async def test_async_functions_run_on_the_loop(context: Make) -> None:
    @tool
    async def where(n: int) -> str:
        """Where."""
        return f"{n} {threading.current_thread() is threading.main_thread()}"

    made: Tool = function_tool(where)
    output = await made.run('{"n": 1}', context())
    assert (output.content, output.status) == ("1 True", ResultStatus.OK)


async def test_sync_functions_run_in_the_pool_with_context_variables(context: Make) -> None:
    @tool
    def where(n: int) -> str:
        return f"{n} {threading.current_thread().name} {trace.get()}"

    trace.set("t1")
    made = function_tool(where)
    assert made.blocking
    assert (await made.run('{"n": 1}', context())).content == "1 retinue-tool-1 t1"


async def test_a_sync_tool_without_threads_is_a_fault_of_the_caller(context: Make) -> None:
    @tool
    def f() -> None: ...

    with pytest.raises(ConfigurationError, match="no `threads`"):
        await function_tool(f).run("", context(threads=None))


async def test_the_context_is_injected(context: Make) -> None:
    shown: list[str] = []

    @tool
    def f(key: str, call: ToolContext) -> str:
        call.progress("half")
        return f"{call.get(key, str)} {call.idempotency_key}"

    made = function_tool(f)
    assert list(made.spec.parameters["properties"]) == ["key"]
    output = await made.run('{"key": "tenant"}', context(attributes={"tenant": "acme"}, report=shown.append))
    assert output.content == "acme msg_1:0"
    assert shown == ["half"]
    refused = await made.run('{"key": "tenant", "call": {}}', context())
    assert "`call`: there is no such argument" in refused.content


async def test_bad_arguments_and_errors_are_results(context: Make) -> None:
    called: list[int] = []

    @tool
    def f(n: int) -> None:
        called.append(n)
        raise ValueError("no") if n else ToolError("exactly this")

    made = function_tool(f)
    bad = await made.run('{"n": "x"}', context())
    assert (bad.status, called) == (ResultStatus.ERROR, [])
    assert "`n`" in bad.content
    failed = await made.run('{"n": 1}', context())
    assert (failed.status, failed.content) == (ResultStatus.ERROR, "`f` failed: ValueError: no")
    exact = await made.run('{"n": 0}', context())
    assert (exact.status, exact.content) == (ResultStatus.ERROR, "exactly this")


async def test_stop_iteration_is_a_result(context: Make) -> None:
    @tool
    def f() -> None:
        raise StopIteration

    output = await function_tool(f).run("", context())
    assert output.status is ResultStatus.ERROR


async def test_only_given_arguments_are_passed(context: Make) -> None:
    default = object()

    @tool
    async def f(a: str = default) -> bool:  # type: ignore[assignment] # pyright: ignore
        return a is default

    assert (await function_tool(f).run("", context())).content == "true"


async def test_cancelling_raises_at_once_while_the_thread_goes_on(context: Make, threads: ToolThreads) -> None:
    started, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool
    def stuck() -> None:
        loop.call_soon_threadsafe(started.set)
        assert go.wait(30)

    task = asyncio.ensure_future(function_tool(stuck).run("", context(run_id="run_7")))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (left,) = threads.running("run_7")
    assert (left.name, left.owner, left.abandoned) == ("stuck", "run_7", True)
    go.set()


async def test_cancelling_an_async_tool_propagates(context: Make) -> None:
    started = asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(function_tool(wait).run("", context()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_nobody_asked_for_is_an_error_of_the_tool(context: Make) -> None:
    @tool
    async def f() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    output = await function_tool(f).run("", context())
    assert output.status is ResultStatus.ERROR
    assert "cancelled" in output.content


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt])
def test_interrupts_are_not_swallowed(error: type[BaseException], blocking: bool) -> None:
    from retinue.clock import SystemClock
    from retinue.messages import CallRef

    def sync_tool() -> None:
        raise error

    async def async_tool() -> None:
        raise error

    threads = ToolThreads(1)

    async def main() -> None:
        place: dict[str, Any] = {"agent_id": "a", "user_id": "", "session_id": "s", "run_id": "r", "path": ()}
        context = ToolContext(**place, call=CallRef("m", 0), attempt=1, threads=threads)
        try:
            await function_tool(tool(sync_tool if blocking else async_tool)).run("", context)
        finally:
            await threads.close(5, SystemClock())

    with pytest.raises(error):
        asyncio.run(main())


async def test_a_wrapper_that_hides_an_async_function_is_awaited(context: Make) -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **values: Any) -> Any:
            return function(*args, **values)

        return wrapper

    async def f(n: int) -> int:
        return n + 1

    made = function_tool(tool(logged(f)))
    assert (await made.run('{"n": 1}', context())).content == "2"


async def test_always_is_what_the_maker_says() -> None:
    def f(path: str) -> None: ...

    declaration = ToolDeclaration(f)
    assert FunctionTool(declaration).always({"path": "x"}) is Verdict.ALLOW
    limited = FunctionTool(declaration, limit_verdict=lambda given: Verdict.DENY if given["path"] == "x" else Verdict.ASK)
    assert limited.always({"path": "x"}) is Verdict.DENY
    assert limited.always({"path": "y"}) is Verdict.ASK
    assert repr(limited).startswith("FunctionTool(f, ")
