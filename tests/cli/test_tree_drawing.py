"""How the tree looks: lines that fit, also in narrow and low terminals, and text that cannot do anything."""

import asyncio
import io
import re
from typing import Any

import pytest
from rich.console import Console

from retinue.cli.lines import lifecycle_line
from retinue.cli.live_tree import TreeView
from retinue.cli.render import draw_tree
from retinue.cli.viewers import JsonViewer, LiveViewer, PlainViewer
from retinue.events import Event, PermissionRequest, RunFinishedEvent, RunStartedEvent, SubAgentInvocationStartedEvent
from retinue.messages import CallRef
from retinue.rows import ThreadKey

KEY = ThreadKey("", "ses_1", "main")
EVIL = "\x1b[2J[red]x[/red]\x07\u202e"


def place(seq: int, at: int = 1_000) -> dict[str, Any]:
    return {"path": ("lead",), "key": KEY, "run_id": "run_1", "seq": seq, "at": at}


def tree_of(children: int, name: str = "reader") -> list[Event]:
    made: list[Event] = [RunStartedEvent(agent_id="lead", owner="own_1", attempt=1, **place(1))]
    for index in range(children):
        made.append(
            SubAgentInvocationStartedEvent(
                invocation_id=f"inv_{index}",
                call=CallRef("msg_1", index),
                parent_tool_call_id="c",
                name=name,
                child_agent_id=name,
                child_session_id=f"sub-{index}",
                child_thread_id="main",
                child_run_id="run_2",
                context_policy="isolated",
                **place(index + 2, 2_000),
            )
        )
    return made


def drawn(events: list[Event], *, width: int = 100, height: int = 24, ascii_only: bool = False) -> list[str]:
    view = TreeView()
    for event in events:
        view.apply(event)
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(draw_tree(view, now=3_500, width=width, height=height, ascii_only=ascii_only))
    return capture.get().splitlines()


def test_a_tree_with_its_children() -> None:
    lines = drawn(tree_of(2))
    assert re.match(r"\S lead +waits for 2 subagents {50,}2\.5 s$", lines[0])
    assert re.match(r"├─ \S reader +asks the model .* 1\.5 s$", lines[1])
    assert re.match(r"└─ \S reader +asks the model .* 1\.5 s$", lines[2])


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    question = PermissionRequest(
        request_id="req_1",
        call=CallRef("msg_9", 0),
        tool="write_file",
        agent_id="lead",
        arguments='{"path": "' + "世界" * 100 + '"}',
        **place(9),
    )
    lines = drawn([*tree_of(3, "a-name-that-is-much-too-long-for-any-terminal-at-all"), question], width=width)
    assert len(lines) == 4
    from rich.cells import cell_len

    assert max(map(cell_len, lines)) <= width


def test_more_children_than_rows_are_folded() -> None:
    lines = drawn(tree_of(200), height=10)
    assert len(lines) == 9
    assert lines[-1].strip() == "… 193 more: 193 running"


def test_ascii_where_the_terminal_has_no_unicode() -> None:
    text = "\n".join(drawn(tree_of(1), ascii_only=True))
    assert text.isascii()
    assert "`- * reader" in text


def test_nothing_an_agent_is_called_or_says_reaches_the_terminal_raw() -> None:
    question = PermissionRequest(request_id="req_1", call=CallRef("m", 0), tool=EVIL, agent_id="lead", arguments="{}", **place(9))
    events = [*tree_of(1, EVIL), question]
    out = "\n".join(drawn(events))
    view = TreeView()
    for event in events:
        view.apply(event)
        out += lifecycle_line(event, view) or ""
    assert not set(out) & set("\x1b\x07\u202e")
    assert "[red]x[/red]" in out


def test_plain_lines() -> None:
    out = io.StringIO()
    viewer = PlainViewer(out)
    for event in [*tree_of(1), RunFinishedEvent(status="failed", reason="limit:max_iters", **place(9, 13_000))]:
        viewer.show(event)
    assert out.getvalue().splitlines() == [
        "[  0.0 s] lead: started",
        "[  1.0 s] lead: reader started",
        "[   12 s] lead: failed: limit:max_iters",
    ]


def test_json_lines_are_ascii() -> None:
    out = io.StringIO()
    viewer = JsonViewer(lambda event: {"text": EVIL + "\x9b"}, out)
    viewer.show(tree_of(0)[0])
    assert out.getvalue().isascii()
    assert "\x1b" not in out.getvalue()


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.anyio
@pytest.mark.parametrize("no_colour", [False, True])
async def test_the_live_tree_draws_itself_and_leaves_no_task(no_colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    out = _Terminal()
    before = asyncio.all_tasks()
    async with LiveViewer(out, now=lambda: 3_500) as viewer:
        for event in tree_of(1):
            viewer.show(event)
        viewer.pause()
        viewer.say(f"stopping {EVIL}")
        viewer.resume()
    assert asyncio.all_tasks() == before
    text = out.getvalue()
    assert "reader" in text
    assert "stopping" in text
    assert "\x1b[2J" not in text
    assert ("\x1b[36m" in text) is not no_colour  # cyan, the running state
