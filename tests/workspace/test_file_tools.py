"""The built-in file tools as a model meets them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.config import Verdict
from retinue.states import ResultStatus
from retinue.tools import ToolOutput
from retinue.workspace import FILE_TOOLS, WorkspaceFiles, file_tools
from retinue.workspace.tools import MAX_CHARACTERS, MAX_ENTRIES, MAX_MATCHES

Call = Callable[..., ToolOutput]


def ok(output: ToolOutput) -> str:
    assert output.status is ResultStatus.OK, output.content
    return output.content


def error(output: ToolOutput) -> str:
    assert output.status is ResultStatus.ERROR, output.content
    return output.content


def test_flags_specs_and_needs(root: Path) -> None:
    made = file_tools(WorkspaceFiles(root))
    assert tuple(one.name for one in made) == FILE_TOOLS
    flags = {one.name: one.flags for one in made}
    assert [name for name in FILE_TOOLS if flags[name].read_only] == ["read_file", "list_files", "grep_files"]
    assert [name for name in FILE_TOOLS if flags[name].need is Verdict.ASK] == ["write_file", "edit_file"]
    assert flags["write_file"].idempotent
    assert not flags["edit_file"].repeatable
    assert {one.main_argument for one in flags.values()} == {"path"}
    assert all(one.blocking and one.description for one in made)
    assert made[0].spec is file_tools(WorkspaceFiles(root))[0].spec
    for one in made:
        assert all(entry.get("description") for entry in one.spec.parameters["properties"].values())


@pytest.mark.parametrize(
    ("name", "arguments", "verdict"),
    [
        ("read_file", {"path": "a"}, Verdict.ALLOW),
        ("read_file", {"path": "AGENTS.md"}, Verdict.ALLOW),
        ("read_file", {"path": ".retinue/x"}, Verdict.DENY),
        ("read_file", {"path": "../x"}, Verdict.DENY),
        ("read_file", {"path": 3}, Verdict.ALLOW),
        ("write_file", {"path": "a"}, Verdict.ALLOW),
        ("write_file", {"path": "new/AGENTS.md"}, Verdict.ASK),
        ("edit_file", {"path": "subagents/x.md"}, Verdict.ASK),
        ("edit_file", {"path": "agents/a/tasks/s.json"}, Verdict.DENY),
        ("list_files", {}, Verdict.ALLOW),
        ("list_files", {"path": ".retinue"}, Verdict.DENY),
        ("grep_files", {"pattern": "x"}, Verdict.ALLOW),
        ("grep_files", {"pattern": "x", "path": "/etc"}, Verdict.DENY),
    ],
)
def test_always_follows_protection(root: Path, name: str, arguments: dict[str, object], verdict: Verdict) -> None:
    made = {one.name: one for one in file_tools(WorkspaceFiles(root))}
    assert made[name].always(arguments) is verdict


def test_reading_a_page_says_how_to_go_on(call_tool: Call, root: Path) -> None:
    (root / "x").write_text("".join(f"line {i}\n" for i in range(1, 11)))
    assert ok(call_tool("read_file", '{"path": "x"}')) == (root / "x").read_text()
    page = ok(call_tool("read_file", '{"path": "x", "limit": 3}'))
    assert page == "line 1\nline 2\nline 3\n[lines 1 to 3 of 10; go on with offset=4]"
    last = ok(call_tool("read_file", '{"path": "x", "offset": 9, "limit": 3}'))
    assert last == "line 9\nline 10\n[lines 9 to 10 of 10]"
    assert "10 lines" in error(call_tool("read_file", '{"path": "x", "offset": 11}'))
    assert "at least 1" in error(call_tool("read_file", '{"path": "x", "offset": 0}'))


@pytest.mark.case("B134")
def test_large_files_are_read_in_pieces_that_make_up_the_whole(call_tool: Call, root: Path) -> None:
    text = "".join(f"{i} {'x' * (i % 90)}\n" for i in range(6_000))
    (root / "x").write_text(text)
    offset, taken = 1, ""
    while True:
        content = ok(call_tool("read_file", json.dumps({"path": "x", "offset": offset})))
        assert len(content) < MAX_CHARACTERS + 200
        body, _, note = content.rpartition("[")
        taken += body
        if "go on with" not in note:
            break
        offset = int(note.rpartition("offset=")[2].rstrip("]"))
    assert taken == text


def test_a_long_line_an_empty_file_and_a_byte_order_mark(call_tool: Call, root: Path) -> None:
    (root / "long").write_text("y" * 1_000_000 + "\nend")
    content = ok(call_tool("read_file", '{"path": "long"}'))
    assert "1,000,000 characters long and cut" in content
    assert "go on with offset=2" in content
    assert ok(call_tool("read_file", '{"path": "long", "offset": 2}')).startswith("end")
    (root / "empty").write_text("")
    assert ok(call_tool("read_file", '{"path": "empty"}')) == "[`empty` is empty]"
    (root / "bom").write_bytes(b"\xef\xbb\xbfx")
    assert ok(call_tool("read_file", '{"path": "bom"}')) == "x"


def test_a_missing_file_names_what_may_be_meant(call_tool: Call, root: Path) -> None:
    (root / "src").mkdir()
    (root / "src/main.py").write_text("")
    assert "Did you mean `src/main.py`?" in error(call_tool("read_file", '{"path": "src/man.py"}'))
    assert "Did you mean `src/main.py`?" in error(call_tool("edit_file", '{"path": "main.py", "old": "a", "new": "b"}'))
    assert "list_files" in error(call_tool("read_file", '{"path": "qqq"}'))


def test_writing(call_tool: Call, root: Path) -> None:
    first = call_tool("write_file", '{"path": "a/x.txt", "content": "one\\ntwo\\n"}')
    assert ok(first) == "Created `a/x.txt` (2 lines, 8 bytes)."
    assert ok(call_tool("write_file", '{"path": "a/x.txt", "content": "one"}')) == "Replaced `a/x.txt` (1 line, 3 bytes)."
    assert (root / "a/x.txt").read_text() == "one"
    assert "leaves the workspace" in error(call_tool("write_file", '{"path": "../x", "content": ""}'))
    assert "`content`: is missing" in error(call_tool("write_file", '{"path": "x"}'))


def test_editing(call_tool: Call, root: Path) -> None:
    (root / "x").write_text("a b a")
    many = error(call_tool("edit_file", '{"path": "x", "old": "a", "new": "c"}'))
    assert "occurs 2 times" in many
    assert "replace_all" in many
    assert "does not occur" in error(call_tool("edit_file", '{"path": "x", "old": "z", "new": "c"}'))
    assert "is empty" in error(call_tool("edit_file", '{"path": "x", "old": "", "new": "c"}'))
    assert "the same" in error(call_tool("edit_file", '{"path": "x", "old": "a", "new": "a"}'))
    assert ok(call_tool("edit_file", '{"path": "x", "old": " b ", "new": "-"}')) == "Edited `x` in 1 place."
    assert ok(call_tool("edit_file", '{"path": "x", "old": "a", "new": "c", "replace_all": true}')) == "Edited `x` in 2 places."
    assert (root / "x").read_text() == "c-c"


def test_windows_line_ends_survive_an_edit(call_tool: Call, root: Path) -> None:
    (root / "x").write_bytes(b"\xef\xbb\xbfa\r\nb\r\nc\r\n")
    ok(call_tool("edit_file", '{"path": "x", "old": "a\\nb", "new": "1\\n2"}'))
    assert (root / "x").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nc\r\n"


def test_listing(call_tool: Call, root: Path) -> None:
    assert ok(call_tool("list_files")) == "[`.` is empty]"
    (root / "src").mkdir()
    (root / "src/a.py").write_text("x" * 1_234)
    (root / "b.md").write_text("")
    (root / ".retinue").mkdir()
    assert ok(call_tool("list_files")) == "b.md (0 bytes)\nsrc/"
    assert ok(call_tool("list_files", '{"pattern": "*.py"}')) == "src/a.py (1,234 bytes)"
    assert ok(call_tool("list_files", '{"path": "src", "pattern": "**/*.py"}')) == "src/a.py (1,234 bytes)"
    assert "no file below" in ok(call_tool("list_files", '{"pattern": "*.rs"}'))
    assert "not a folder" in error(call_tool("list_files", '{"path": "b.md"}'))
    assert "Did you mean `src`?" in error(call_tool("list_files", '{"path": "srcc"}'))


def test_long_listings_and_searches_are_cut_with_a_note(call_tool: Call, root: Path) -> None:
    for i in range(MAX_ENTRIES + 20):
        (root / f"{i:04}").write_text("needle\n")
    content = ok(call_tool("list_files"))
    assert content.count("\n") == MAX_ENTRIES
    assert content.endswith("[20 more entries; list a folder below, or use a narrower `pattern`]")
    found = ok(call_tool("grep_files", '{"pattern": "needle"}'))
    assert found.count("\n") == MAX_MATCHES
    assert "narrow `pattern`" in found


def test_searching(call_tool: Call, root: Path) -> None:
    (root / "a.py").write_text("  def f():\n" + "x" * 1_000)
    assert ok(call_tool("grep_files", '{"pattern": "def \\\\w+"}')) == "a.py:1: def f():"
    assert len(ok(call_tool("grep_files", '{"pattern": "xxx"}'))) < 400
    assert ok(call_tool("grep_files", '{"pattern": "nowhere"}')) == "[no line matches]"
    assert "no regular expression" in error(call_tool("grep_files", '{"pattern": "("}'))
    assert "is empty" in error(call_tool("grep_files", '{"pattern": ""}'))


@pytest.mark.case("B175")
def test_names_that_are_no_text_do_not_reach_a_transcript(call_tool: Call, root: Path) -> None:
    with open(os.fsencode(root) + b"/\xff", "w") as file:
        file.write("needle")
    for content in (ok(call_tool("list_files")), ok(call_tool("grep_files", '{"pattern": "needle"}'))):
        content.encode()
