"""Pictures in a conversation on the command line: a short line, and never the bytes."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent, Image, MessageEvent, RuntimeContext, ToolCallResultEvent, tool
from retinue.cli.jsonl import EventLines
from retinue.cli.live_tree import TreeView
from retinue.testing import RecordingModel, calls

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8
PHOTO = Image(PNG, name="photo\x1b[31m.png")
LINE = "[image photo__31m.png, 2 kB]"


@tool(read_only=True)
async def screenshot() -> list[Any]:
    """Takes a picture."""
    return ["The screen:", PHOTO]


async def test_what_is_shown_of_a_picture(command_line: Any, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    model = RecordingModel([calls(("screenshot", {})), "A cat."])
    view, lines = TreeView(), EventLines()
    live: list[Any] = []
    async with Agent("a", model=model, tools=[screenshot], ledger=path) as agent:
        async for event in agent.stream(["What is this?", PHOTO], context=RuntimeContext(session_id="s")):
            view.apply(event)
            live.append(lines.describe(event))
            if isinstance(event, MessageEvent | ToolCallResultEvent):
                assert "PNG" not in repr(event)
    shown = await command_line("threads", "show", "s", "--ledger", str(path))
    assert shown.code == 0, shown.err
    assert f"user:\n  What is this?\n  {LINE}" in shown.out
    assert f"<- screenshot:\n     | The screen:\n     | {LINE}" in shown.out
    records = await command_line("threads", "show", "s", "--ledger", str(path), "--json")
    listed = await command_line("threads", "list", "--ledger", str(path), "--json")
    tree = await command_line("threads", "tree", "--ledger", str(path))
    for text in (json.dumps(live), shown.out, records.out, listed.out, tree.out):
        assert b64encode(PNG[:60]).decode() not in text
        assert "\x1b" not in text
        assert len(text) < 20_000
    found = [record["body"] for record in json.loads(records.out) if record["type"] == "TOOL_CALL_RESULT"]
    expected = {"digest": PHOTO.digest, "mediaType": "image/png", "size": len(PNG), "name": "photo__31m.png"}
    assert found[0]["parts"] == [expected]
    assert any(LINE in json.dumps(one) for one in live)
