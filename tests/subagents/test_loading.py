"""Declaration files: what loads, what is refused, and that a bad file never stops a good one (invariant 11)."""

import os
from pathlib import Path

import pytest

from retinue.config import UNSET, WorkspaceMode
from retinue.subagents.declaration import SubAgent
from retinue.subagents.loading import MAX_FILE_BYTES, LoadReport, load_file, load_subagents, parse_declaration

PLAIN = "---\ndescription: Reviews\n---\nReview.\n"


def parse(text: str, name: str = "reviewer") -> SubAgent:
    """The declaration of a file that must load."""
    declaration, diagnostics = parse_declaration(text, Path(f"subagents/{name}.md"))
    assert declaration is not None, diagnostics
    return declaration


def header(*lines: str) -> SubAgent:
    """The declaration of a file with these lines beside a description."""
    return parse("\n".join(("---", "description: Reviews", *lines, "---", "Review.")))


def findings(*lines: str) -> list[tuple[str, str, int | None]]:
    """Severity, code and line of what is said about such a file."""
    _, found = parse_declaration("\n".join(("---", "description: Reviews", *lines, "---", "Review.")), Path("x.md"))
    assert all(diagnostic.remedy and diagnostic.path == Path("x.md") for diagnostic in found)
    return [(diagnostic.severity, diagnostic.code, diagnostic.line) for diagnostic in found]


def write(folder: Path, **files: str) -> LoadReport:
    """Load a folder with these files."""
    for name, text in files.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return load_subagents(folder)


@pytest.mark.contract("A-18", "A-10", "D-02")
def test_a_whole_file() -> None:
    declaration = parse(
        "---\ndescription: Code review expert\nmodel: openai:gpt-4o-mini\nmaxIters: 8\n"
        "tools: [read_file, grep_files]\ntemperature: 0.5\ntop_p: 0.9\nmode: subagent\nhidden: true\naskParent: yes\n"
        "skills: review, style\ndisallowedTools: execute\nbuiltinTools: named\n---\n\nYou review.\n"
    )
    assert (declaration.id, declaration.name, declaration.source) == ("reviewer", "reviewer", "file")
    assert (declaration.description, declaration.instructions) == ("Code review expert", "You review.")
    assert (declaration.model, declaration.max_iters) == ("openai:gpt-4o-mini", 8)
    assert declaration.tools == ("read_file", "grep_files")
    assert (declaration.chat.temperature, declaration.chat.top_p) == (0.5, 0.9)
    assert (declaration.mode, declaration.hidden, declaration.skills) == ("subagent", True, ("review", "style"))
    assert declaration.ask_parent is True
    assert (declaration.disallowed_tools, declaration.builtin_tools) == (("execute",), "named")
    assert (declaration.surface, declaration.leaf) == ("roster", UNSET)
    assert declaration.origin.path == Path("subagents/reviewer.md")


@pytest.mark.contract("A-18")
def test_what_is_absent_is_left_to_the_surface() -> None:
    declaration = header()
    assert declaration.tools is None
    assert declaration.model is None
    assert (declaration.max_iters, declaration.workspace_mode, declaration.builtin_tools) == (UNSET, UNSET, UNSET)


@pytest.mark.contract("A-17")
@pytest.mark.case("B119", "B093")
@pytest.mark.parametrize("name", ["yes", "on", "12306", "1.0", "2026-01-01", "0x1F", "1e3", "07", "Code Reviewer", "a/b"])
def test_the_file_name_is_the_id_and_the_name_stays_text(name: str) -> None:
    declaration = header(f"name: {name}")
    assert (declaration.id, declaration.name, declaration.origin.title) == ("reviewer", "reviewer", name)


@pytest.mark.case("B119")
@pytest.mark.parametrize("name", ["", "~", "null"])
def test_an_empty_name_is_none(name: str) -> None:
    assert header(f"name: {name}").origin.title is None
    assert header('name: "null"').origin.title == "null"


@pytest.mark.contract("A-08", "A-09", "A-18")
def test_workspace_mode_and_path() -> None:
    text = "---\ndescription: D\nworkspace:\n  mode: Shared\n  path: ./defs/reviewer\n---\n"
    declaration = parse(text)
    assert (declaration.workspace, declaration.workspace_mode) == (Path("defs/reviewer"), WorkspaceMode.SHARED)
    assert header("workspace: {mode: isolated}").workspace_mode is WorkspaceMode.ISOLATED


@pytest.mark.contract("A-19")
def test_a_body_beside_a_workspace_path_is_ignored_with_a_warning() -> None:
    declaration = header("workspace:", "  path: ./defs")
    assert declaration.instructions is None
    assert findings("workspace:", "  path: ./defs") == [("warning", "body_ignored", None)]


@pytest.mark.contract("A-20")
@pytest.mark.parametrize("line", ["url: http://h", "headers: {a: b}", "URL: x", "url:"])
def test_url_and_headers_are_refused(line: str) -> None:
    assert findings("model: m", line) == [("error", "remote_in_file", 4)]


@pytest.mark.contract("A-18", "D-25")
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("maxIters: 8",), 8),
        (("max_iters: 8",), 8),
        (("max-iters: '8'",), 8),
        (("steps: 5", "maxIters: 8"), 5),
        (("maxIters: 8", "steps: 5"), 5),
        (("maxIters:",), UNSET),
    ],
)
def test_limits_in_every_spelling(lines: tuple[str, ...], expected: object) -> None:
    assert header(*lines).max_iters == expected


@pytest.mark.case("B031")
@pytest.mark.parametrize("value", ["0", "-1", "2.5", "many", "[3]", "0x10", "²"])
def test_a_limit_that_cannot_be_read_refuses_the_file(value: str) -> None:
    assert findings(f"maxIters: {value}") == [("error", "invalid_value", 3)]


@pytest.mark.case("B109", "B110")
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("tools: Read, Bash",), ("Read", "Bash")),
        (("tools: [Read, Bash]",), ("Read", "Bash")),
        (("tools:", "  - Read", "  - Bash"), ("Read", "Bash")),
        (("tools:", "- Read", "- Bash # last"), ("Read", "Bash")),
        (('tools: "[Read, Bash]"',), ("Read", "Bash")),
        (("tools:  Read ,, Bash ,",), ("Read", "Bash")),
        (("Tools: Read, Bash",), ("Read", "Bash")),
        (("tools: {Read: true, Bash: yes, Write: false}",), ("Read", "Bash")),
        (("tools: Read",), ("Read",)),
        (("tools: '*'",), ("*",)),
        (("tools: []",), ()),
        (("tools: ''",), ()),
        (("tools:",), ()),
        (("tools: null",), ()),
        (("tools: {Write: false}",), ()),
        (("tools: [Read, null, {a: b}, 12]",), ("Read", "12")),
    ],
)
def test_tools_in_every_spelling_never_more_than_written(lines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert header(*lines).tools == expected


@pytest.mark.case("B110")
def test_what_was_left_out_of_tools_is_said() -> None:
    assert findings("tools: [Read, null]") == [("warning", "invalid_value", 3)]
    assert findings("tools:") == [("warning", "empty_list", 3)]
    assert findings("tools: {Read: maybe}") == [("error", "invalid_value", 3)]
    assert header("tools: {Read: true, Write: false}").disallowed_tools == ("Write",)


@pytest.mark.case("B113", "B114")
def test_unknown_keys_are_kept_and_told_once() -> None:
    declaration = header("color: red", "x-foo: {nested: 1}", "version: 1.0")
    assert declaration.origin.extras == {"color": "red", "x-foo": {"nested": "1"}, "version": "1.0"}
    assert findings("color: red", "version: 1") == [("info", "unknown_keys", None)]


@pytest.mark.parametrize(
    ("key", "meant"), [("maxIter", "`maxIters`"), ("modle", "`model`"), ("tool", "`tools`"), ("descripton", "`description`")]
)
def test_a_slip_is_told_with_its_line_and_what_was_meant(key: str, meant: str) -> None:
    _, (found, *_) = parse_declaration(f"---\ndescription: Reads\n{key}: 3\n---\nRead.\n", Path("a.md"))
    assert (found.severity, found.code, found.line) == ("warning", "unknown_key", 3)
    assert meant in found.remedy


@pytest.mark.parametrize("key", ["allowed-tools", "hooks", "max_tokens", "permissionMode"])
def test_a_key_of_another_product_is_no_slip(key: str) -> None:
    assert findings(f"{key}: x") == [("info", "unknown_keys", None)]


@pytest.mark.case("B058")
def test_a_file_cannot_grant_delegation() -> None:
    declaration = header("leaf: false", "availability: any")
    assert declaration.leaf is UNSET
    assert declaration.availability is UNSET


@pytest.mark.parametrize(
    "line", ["temperature: warm", "temperature: 9", "top_p: nan", "mode: agent", "hidden: maybe", "name: [a]"]
)
def test_a_bad_tuning_value_is_left_out_with_a_warning(line: str) -> None:
    assert findings(line) == [("warning", "invalid_value", 3)]
    declaration = header(line)
    assert (declaration.chat.temperature, declaration.chat.top_p, declaration.mode, declaration.hidden) == (
        None,
        None,
        "all",
        False,
    )


@pytest.mark.parametrize("line", ["model: [a, b]", "workspace: ./defs", "workspace: {path: [a]}", "tools: {a: {b: c}}"])
def test_a_bad_value_that_matters_refuses_the_file(line: str) -> None:
    assert findings(line) == [("error", "invalid_value", 3)]


def test_an_unknown_workspace_mode_is_the_narrow_one() -> None:
    assert header("workspace: {mode: open}").workspace_mode is WorkspaceMode.ISOLATED
    assert findings("workspace: {mode: open, size: 3}") == [
        ("warning", "unknown_key", 3),
        ("warning", "invalid_value", 3),
    ]


def test_model_inherit_is_the_parents() -> None:
    assert header("model: inherit").model is None


@pytest.mark.contract("A-18")
@pytest.mark.parametrize(
    "text", ["---\nmodel: x\n---\nB", "---\ndescription:\n---\nB", "---\n---\nB", "---\n# only this\n---\nB"]
)
def test_a_file_without_description_is_refused(text: str) -> None:
    declaration, (finding,) = parse_declaration(text, Path("x.md"))
    assert declaration is None
    assert (finding.severity, finding.code) == ("error", "missing_description")


@pytest.mark.case("B108")
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_byte_order_marks_and_line_ends(mark: str, end: str) -> None:
    text = mark + PLAIN.replace("\n", end)
    assert (parse(text).description, parse(text).instructions) == ("Reviews", "Review.")
    assert parse(text.rstrip()).instructions == "Review."


@pytest.mark.case("B118")
def test_the_header_ends_at_an_unindented_marker_only() -> None:
    text = "\n\n---  \ndescription: |\n  One\n  ---\n  two --- three\n---\nBody\n\n---\n\nMore\n----\n"
    declaration = parse(text)
    assert declaration.description == "One\n---\ntwo --- three"
    assert declaration.instructions == "Body\n\n---\n\nMore\n----"


@pytest.mark.case("B098", "B117", "B116")
@pytest.mark.parametrize(
    "text", ["", "# Researcher\n\ntext", "Text\n---\ndescription: x\n---\n", "```\n---\ndescription: x\n---\n```"]
)
def test_a_file_without_header_is_no_subagent_and_blocks_nothing(tmp_path: Path, text: str) -> None:
    report = write(tmp_path, README=text)
    assert (report.declarations, report.refused, report.ok) == ((), (), True)
    assert [(found.severity, found.code) for found in report.diagnostics] == [("info", "no_header")]


@pytest.mark.case("B103", "B106", "B104")
@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("model: Use this. This includes: A", 3),
        ("model: **bold**", 3),
        ("tools: *", 3),
        ("<example>", 4),
        ("skill:true", 4),
        ("tools: [a", 4),
        ("\ttools: a", 3),
        ("model: a\u0000b", 2),
        ("model: m\nmodel: n", 4),
        ("max_iters: 2\nmaxIters: 3", 4),
        ("x: {a: 1, a: 2}", 3),
        ("x: &a [1]\ny: *a", 3),
        ("<<: {tools: [execute]}", 3),
        ("x: !!python/object/apply:os.system ['true']", 3),
        ("? [a]\n: b", 3),
        ("x: " + "[" * 40 + "]" * 40, 3),
        ("x: " + "[" * 4000, 3),
    ],
)
def test_a_header_that_cannot_be_read_for_certain_refuses_the_file(line: str, place: int) -> None:
    text = f"---\ndescription: D\n{line}\n---\nBody"
    declaration, (finding,) = parse_declaration(text, Path("x.md"))
    assert declaration is None
    assert finding.severity == "error"
    assert finding.code in ("invalid_yaml", "duplicate_key")
    assert finding.line == place
    assert finding.remedy


@pytest.mark.parametrize("text", ["---\n- a\n---\n", "---\njust text\n---\n"])
def test_a_header_that_is_no_mapping_is_refused(text: str) -> None:
    _, (finding,) = parse_declaration(text, Path("x.md"))
    assert finding.code == "invalid_yaml"


def test_a_header_that_does_not_end_is_refused() -> None:
    _, (finding,) = parse_declaration("---\ndescription: D\nBody", Path("x.md"))
    assert (finding.severity, finding.code, finding.line) == ("error", "unterminated_header", 1)


def test_a_description_may_be_long_and_of_many_lines() -> None:
    long = "Use this when needed. " * 120
    assert parse(f"---\ndescription: >\n  {long}\n---\n").description == long.strip()


@pytest.mark.contract("D-06")
@pytest.mark.case("B102")
def test_only_the_first_level_is_loaded_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "nested.md").write_text(PLAIN)
    (tmp_path / "notes.txt").write_text(PLAIN)
    report = write(tmp_path, zeta=PLAIN, alpha=PLAIN)
    assert [declaration.id for declaration in report.declarations] == ["alpha", "zeta"]
    assert report.diagnostics == ()


def test_a_folder_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    assert load_subagents(tmp_path / "none") == LoadReport()
    assert load_subagents(str(tmp_path)) == LoadReport()


def test_a_folder_that_cannot_be_listed_is_said(tmp_path: Path) -> None:
    file = tmp_path / "subagents"
    file.write_text("")
    report = load_subagents(file)
    assert [(found.severity, found.code) for found in report.diagnostics] == [("error", "unreadable")]


@pytest.mark.case("B093", "B099", "B108")
def test_a_bad_file_never_stops_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "link.md").symlink_to(tmp_path / "good.md")
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "huge.md").write_bytes(PLAIN.encode() + b"x" * MAX_FILE_BYTES)
    (tmp_path / "latin.md").write_bytes(PLAIN.encode() + b"\xe9")
    (tmp_path / "wide.md").write_bytes(PLAIN.encode("utf-16"))
    report = write(tmp_path, good=PLAIN, broken="---\ndescription: a: b\n---\n", **{"bad id": PLAIN})
    assert [declaration.id for declaration in report.declarations] == ["good"]
    codes = {agent_id: found.code for agent_id, found in report.refused}
    assert codes == {
        "bad id": "invalid_agent_id",
        "broken": "invalid_yaml",
        "folder": "not_a_file",
        "huge": "too_large",
        "latin": "not_utf8",
        "link": "symlink",
        "pipe": "not_a_file",
        "wide": "not_utf8",
    }
    assert all(found.path is not None and found.remedy for found in report.diagnostics)
    assert "UTF-16" in next(str(found) for agent_id, found in report.refused if agent_id == "wide")
    assert not report.ok


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text(PLAIN)
    (tmp_path / "secret.md").chmod(0)
    report = write(tmp_path, good=PLAIN)
    assert [found.code for _, found in report.refused] == ["unreadable"]
    assert len(report.declarations) == 1


def test_a_file_that_is_gone_when_it_is_read_is_said(tmp_path: Path) -> None:
    file = load_file(tmp_path / "gone.md")
    assert file.declaration is None
    assert file.refusal is not None
    assert file.refusal.code == "unreadable"


def test_a_file_named_only_md_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".md").write_text(PLAIN)
    assert [found.code for _, found in load_subagents(tmp_path).refused] == ["invalid_agent_id"]


def test_a_finding_reads_as_one_line_with_its_place() -> None:
    _, (finding,) = parse_declaration("---\ndescription: D\nmaxIters: x\n---\n", Path("a/x.md"))
    assert str(finding) == "a/x.md:3: error: `maxIters` is `x`. Give a whole number from 1, or remove the key."
