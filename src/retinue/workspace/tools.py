"""The built-in file tools: `read_file`, `write_file`, `edit_file`, `list_files`, `grep_files`.

Results are bounded, and end with a note in square brackets that says how to get the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from retinue.config import Verdict
from retinue.tools import FunctionTool, Tool, ToolContext, ToolDeclaration, ToolError, ToolFlags
from retinue.tools.results import bounded, clean_text
from retinue.workspace.content import FileInfo
from retinue.workspace.errors import FileError
from retinue.workspace.files import WorkspaceFiles
from retinue.workspace.paths import glob_matches, shown
from retinue.workspace.search import Hidden, grep, near_paths, walk

__all__ = ["FILE_TOOLS", "FileTool", "file_tools"]

FILE_TOOLS: Final = ("read_file", "write_file", "edit_file", "list_files", "grep_files")
"""The names of the built-in file tools."""

MAX_CHARACTERS: Final = 50_000
"""Characters of one result."""

MAX_LINES: Final = 2_000
MAX_ENTRIES: Final = 500
MAX_MATCHES: Final = 200
MAX_MATCH_LINE: Final = 300


class FileTool(FunctionTool):
    """A built-in file tool, which knows whose files it works on: so the agent that has it can close its ledger to it."""

    def __init__(self, files: WorkspaceFiles, declaration: ToolDeclaration, function: Callable[..., Any]) -> None:
        super().__init__(declaration, function, limit_verdict=self._most, touched=self._touches)
        self.files = files

    def _most(self, arguments: Mapping[str, Any]) -> Verdict:
        path = arguments.get("path", ".")
        if not isinstance(path, str):  # the call will be refused for its arguments
            return Verdict.ALLOW
        return self.files.verdict(path, writing=not self.flags.read_only)

    def _touches(self, arguments: Mapping[str, Any]) -> Sequence[str]:
        path = arguments.get("path", ".")
        return self.files.places(path) if isinstance(path, str) else ()


def file_tools(files: WorkspaceFiles) -> list[Tool]:
    """The tools for these files, in the order of `FILE_TOOLS`. Reading is allowed by default, writing asks; what is protected
    is refused or always asks, whatever the rules say (`Tool.always`). Rules see where a path really leads (`Tool.places`)."""
    methods = _FileTools(files)
    return [FileTool(files, declaration, getattr(methods, declaration.name)) for declaration in _DECLARATIONS]


class _FileTools:
    """The methods behind the tools; their docstrings are what models read."""

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files

    def read_file(self, context: ToolContext, path: str, offset: int = 1, limit: int = MAX_LINES) -> str:
        """Read a text file of the workspace.

        Args:
            path: Path relative to the workspace.
            offset: Number of the first line to read, from 1.
            limit: How many lines to read at most.
        """
        if offset < 1 or limit < 1:
            raise ToolError("`offset` and `limit` must be at least 1")
        try:
            text = self._files.read_text(path)
        except FileError as error:
            raise self._with_near_names(error, path, context) from error
        return _page(text.removeprefix("\ufeff"), offset, limit, shown(path))

    def write_file(self, path: str, content: str) -> str:
        """Create a text file of the workspace, or replace it as a whole. Missing folders are made.

        Args:
            path: Path relative to the workspace.
            content: The whole new content.
        """
        written = self._files.write_text(path, content)
        done = "Created" if written.created else "Replaced"
        return f"{done} {shown(written.path)} ({_lines(content)}, {written.size:,} bytes)."

    def edit_file(self, context: ToolContext, path: str, old: str, new: str, replace_all: bool = False) -> str:
        """Replace a piece of text in a file of the workspace.

        Args:
            path: Path relative to the workspace.
            old: The text to replace, exactly as it is in the file, with enough around it to occur only once.
            new: The text to put in its place.
            replace_all: Replace every occurrence instead of exactly one.
        """
        if not old or old == new:
            fault = "`old` is empty" if not old else "`old` and `new` are the same"
            raise ToolError(fault, remedy="use `write_file` to write a whole file")
        counts: list[int] = []

        def change(text: str) -> str:
            changed, count = _replaced(text, old, new, replace_all, path)
            counts.append(count)
            return changed

        try:
            written = self._files.edit_text(path, change)
        except FileError as error:
            raise self._with_near_names(error, path, context) from error
        times = "1 place" if counts[-1] == 1 else f"{counts[-1]:,} places"
        return f"Edited {shown(written.path)} in {times}."

    def list_files(self, context: ToolContext, path: str = ".", pattern: str | None = None) -> str:
        """List a folder of the workspace, or, with a pattern, all files below it whose name or path fits.

        Args:
            path: Folder relative to the workspace.
            pattern: Glob such as `*.py` (names, at any depth) or `src/**/*.py` (paths below the folder).
        """
        hidden = _hidden(context, path, "list_files")
        try:
            if pattern is None:
                entries = [entry for entry in self._files.children(path) if not hidden(entry.path)]
            else:
                start = self._files.stat(path).path
                below = "" if start == "." else f"{start}/"
                entries = [
                    entry
                    for entry in walk(self._files, path, hidden=hidden)
                    if entry.kind != "directory" and glob_matches(entry.path.removeprefix(below), pattern)
                ]
        except FileError as error:
            raise self._with_near_names(error, path, context) from error
        if not entries:
            empty = "is empty" if not hidden.count else "shows nothing"
            nothing = f"{shown(path)} {empty}" if pattern is None else f"no file below {shown(path)} fits `{pattern}`"
            return f"[{_notes(nothing, _left_out(hidden))}]"
        more = len(entries) - MAX_ENTRIES
        note = f"{more:,} more entries; list a folder below, or use a narrower `pattern`" if more > 0 else None
        return _joined([_entry(entry) for entry in entries[:MAX_ENTRIES]], _notes(note, _left_out(hidden)))

    def grep_files(self, context: ToolContext, pattern: str, path: str = ".", glob: str | None = None) -> str:
        """Search the text files of the workspace for a regular expression, line by line.

        Args:
            pattern: Regular expression (Python syntax; begin with `(?i)` to ignore case).
            path: File or folder to search in, relative to the workspace.
            glob: Search only files whose name or path fits, such as `*.py`.
        """
        if not pattern:
            raise ToolError("`pattern` is empty", remedy="use `list_files` to list files")
        hidden = _hidden(context, path, "grep_files", "read_file")  # a search shows what is in files
        try:
            found = grep(self._files, pattern, path, glob=glob, most=MAX_MATCHES, hidden=hidden)
        except FileError as error:
            raise self._with_near_names(error, path, context) from error
        skipped = f"{found.skipped} large files were not searched" if found.skipped else None
        if not found.matches:
            return f"[{_notes('no line matches', skipped, _left_out(hidden))}]"
        more = None if found.complete else "there are more matches; narrow `pattern`, `path` or `glob`"
        lines = [f"{_shown_name(m.path)}:{m.line}: {bounded(m.text.strip(), MAX_MATCH_LINE)}" for m in found.matches]
        return _joined(lines, _notes(more, skipped, _left_out(hidden)))

    def _with_near_names(self, error: FileError, path: str, context: ToolContext) -> FileError:
        """A missing file's error, with the names that may have been meant."""
        if error.code != "missing":
            return error
        names = near_paths(self._files, path, _hidden(context, "", "list_files", "read_file"))
        if not names:
            return error
        if any(clean_text(name) == path != name for name in names):
            return FileError(
                f"the name of {shown(path)} is not valid UTF-8, and no tool can write it",
                code="invalid_path",
                remedy="leave the file out, or tell the user to rename it",
            )
        return FileError(error.message, code=error.code, remedy=f"did you mean {' or '.join(shown(name) for name in names)}?")


def _hidden(context: ToolContext, asked: str, *tools: str) -> Hidden:
    """What this call may not come upon: the places that rules deny to these tools, or would have somebody asked for."""
    return Hidden(lambda path: context.closes_place(tools, path, asked))


def _left_out(hidden: Hidden) -> str | None:
    paths = "1 path was" if hidden.count == 1 else f"{hidden.count:,} paths were"
    return f"{paths} left out by permission rules" if hidden.count else None


def _notes(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


_READING: Final = ToolFlags(read_only=True, idempotent=True, replayable=True, main_argument="path")

_DECLARATIONS: Final = (  # made once: each agent has tools of its own, but they share their schemas
    ToolDeclaration(_FileTools.read_file, flags=_READING),
    ToolDeclaration(_FileTools.write_file, flags=ToolFlags(idempotent=True, need=Verdict.ASK, main_argument="path")),
    ToolDeclaration(_FileTools.edit_file, flags=ToolFlags(need=Verdict.ASK, main_argument="path")),
    ToolDeclaration(_FileTools.list_files, flags=_READING),
    ToolDeclaration(_FileTools.grep_files, flags=_READING),
)


def _page(text: str, offset: int, limit: int, name: str) -> str:
    """Lines `offset` to `offset + limit - 1`, within `MAX_CHARACTERS`, and a note where that is not all."""
    if not text:
        return f"[{name} is empty]"
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    total = len(lines)
    if offset > total:
        raise ToolError(f"{name} has {total:,} lines", remedy="use a smaller `offset`")
    taken: list[str] = []
    size = 0
    cut = ""
    for line in lines[offset - 1 : offset - 1 + limit]:
        if size + len(line) + 1 > MAX_CHARACTERS:
            if not taken:
                taken.append(line[:MAX_CHARACTERS])
                cut = f"line {offset:,} is {len(line):,} characters long and cut; "
            break
        taken.append(line)
        size += len(line) + 1
    body = "\n".join(taken)
    last = offset + len(taken) - 1
    if last < total:
        return f"{body}\n[{cut}lines {offset:,} to {last:,} of {total:,}; go on with offset={last + 1}]"
    if cut or offset > 1:
        return f"{body}\n[{cut}lines {offset:,} to {last:,} of {total:,}]"
    return text


def _replaced(text: str, old: str, new: str, everywhere: bool, path: str) -> tuple[str, int]:
    """The text with `old` replaced, and how often. A file with CRLF line ends is matched and kept as such.

    Raises:
        FileError: `no_match`, it does not occur, or more than once.
    """
    if old not in text and "\r\n" in text:
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    count = text.count(old)
    if count == 0:
        raise FileError(
            f"`old` does not occur in {shown(path)}", code="no_match", remedy="read the file again and copy the text exactly"
        )
    if count > 1 and not everywhere:
        raise FileError(
            f"`old` occurs {count:,} times in {shown(path)}",
            code="no_match",
            remedy="take in more of the text around it, or set `replace_all`",
        )
    return text.replace(old, new), count


def _joined(lines: list[str], note: str | None) -> str:
    """Lines within `MAX_CHARACTERS`, and a note."""
    size = 0
    for index, line in enumerate(lines):
        size += len(line) + 1
        if size > MAX_CHARACTERS:
            dropped = f"{len(lines) - index:,} lines cut"
            lines, note = lines[:index], f"{dropped}; {note}" if note else f"{dropped}; ask for less at once"
            break
    return "\n".join([*lines, f"[{note}]"] if note else lines)


def _entry(entry: FileInfo) -> str:
    name = _shown_name(entry.path)
    match entry.kind:
        case "directory":
            return f"{name}/"
        case "file":
            return f"{name} ({entry.size:,} bytes)"
        case _:
            return f"{name} ({entry.kind})"


def _shown_name(path: str) -> str:
    return clean_text(path).replace("\n", "\\n")


def _lines(text: str) -> str:
    count = text.count("\n") + (not text.endswith("\n") and bool(text))
    return "1 line" if count == 1 else f"{count:,} lines"
