"""`load_subagents(folder)`: the declaration files of one folder, and everything there is to say about them (A-16 to A-20).

A bad file never stops a good one (invariant 11). A file that was refused blocks its id, so that no other source takes
its place unseen.
"""

import os
import stat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from retinue.config import UNSET, ChatClientConfig, Unset
from retinue.errors import ConfigurationError
from retinue.ids import check_agent_id
from retinue.subagents.choices import BuiltinTools
from retinue.subagents.declaration import Origin, SubAgent
from retinue.subagents.diagnostics import Diagnostic, Severity

if TYPE_CHECKING:
    from retinue.subagents.header_fields import HeaderReader

__all__ = ["MAX_FILE_BYTES", "LoadReport", "LoadedFile", "load_file", "load_subagents", "parse_declaration"]

MAX_FILE_BYTES: Final = 1_000_000
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


class LoadedFile(msgspec.Struct, frozen=True):
    """What one file gave: a declaration or none, and the findings. `agent_id` is the file's name without `.md`."""

    agent_id: str
    declaration: SubAgent | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def refusal(self) -> Diagnostic | None:
        """The error for which the file was refused; None for a good file, and for one that is no subagent at all."""
        return next((found for found in self.diagnostics if found.severity == "error"), None)


class LoadReport(msgspec.Struct, frozen=True):
    """What a folder gave, sorted by file name. `refused` are the ids that its bad files block, with the reason."""

    declarations: tuple[SubAgent, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    refused: tuple[tuple[str, Diagnostic], ...] = ()

    @property
    def ok(self) -> bool:
        """True if no file was refused."""
        return not any(found.severity == "error" for found in self.diagnostics)


def load_subagents(folder: str | Path) -> LoadReport:
    """Load `<folder>/*.md`: the first level only, in the order of names (D-06).

    Never raises for what is in the folder. A folder that does not exist holds nothing.
    """
    folder = Path(folder)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".md"))
    except FileNotFoundError:
        return LoadReport()
    except OSError as error:
        remedy = "make it a folder that this process may read"
        message = f"the folder cannot be listed: {error.strerror}"
        return LoadReport((), (Diagnostic(severity="error", code="unreadable", message=message, remedy=remedy, path=folder),))
    files = [load_file(folder / name) for name in names]
    return LoadReport(
        tuple(file.declaration for file in files if file.declaration is not None),
        tuple(found for file in files for found in file.diagnostics),
        tuple((file.agent_id, file.refusal) for file in files if file.refusal is not None),
    )


def load_file(path: Path) -> LoadedFile:
    """Load one declaration file. Never raises for what is in it."""
    agent_id = path.name.removesuffix(".md")
    content = _read(path)
    if isinstance(content, Diagnostic):
        return LoadedFile(agent_id, None, (content,))
    declaration, diagnostics = parse_declaration(content, path)
    return LoadedFile(agent_id, declaration, diagnostics)


def parse_declaration(text: str, path: Path) -> tuple[SubAgent | None, tuple[Diagnostic, ...]]:
    """Read the text of the file at `path`. The id is the file's name without `.md` (A-17). No I/O."""

    def report(severity: Severity, code: str, message: str, remedy: str, line: int | None) -> Diagnostic:
        return Diagnostic(severity=severity, code=code, message=message, remedy=remedy, path=path, line=line)

    from retinue.subagents.front_matter import Problem, read_header, split  # only a file needs them
    from retinue.subagents.header_fields import HeaderReader

    def refusal(problem: Problem) -> tuple[None, tuple[Diagnostic, ...]]:
        severity = "info" if problem.code == "no_header" else "error"
        return None, (report(severity, problem.code, problem.message, problem.remedy, problem.line),)

    parts = split(text)
    if isinstance(parts, Problem):
        return refusal(parts)
    header = read_header(parts.header, parts.line)
    if isinstance(header, Problem):
        return refusal(header)
    reader = HeaderReader(header, report)
    declaration = _declaration(reader, parts.body, path)
    return declaration, tuple(reader.diagnostics)


def _declaration(reader: "HeaderReader", body: str, path: Path) -> SubAgent | None:
    agent_id = path.name.removesuffix(".md")
    _refuse_unfit(reader, agent_id)
    description = reader.text("description", strict=True)
    if description is None and not reader.refused:
        remedy = "add `description:` and say when to use this subagent"
        reader.error("missing_description", "`description` is missing or blank", remedy, reader.line("description") or 1)
    mode, folder = reader.workspace()
    if folder is not None and body.strip():
        remedy = "move the text into the `AGENTS.md` of that folder, or remove `workspace.path`"
        reader.warn("body_ignored", "the text below the header is ignored, because `workspace.path` is set", remedy, None)
    max_iters = reader.count("maxIters")
    max_iters = reader.count("steps") or max_iters
    tools, off = reader.names("tools")
    disallowed, _ = reader.names("disallowedTools")
    skills, _ = reader.names("skills")
    model = reader.text("model", strict=True)
    chat = ChatClientConfig(temperature=reader.number("temperature", 0, 2), top_p=reader.number("top_p", 0, 1))
    builtin = _builtin_tools(reader)
    hidden, asks = reader.flag("hidden"), reader.flag("askParent")
    selection, title = reader.selection_mode(), reader.text("name")
    reader.tell_extras()
    if reader.refused or description is None:
        return None
    try:
        return SubAgent(
            agent_id,
            description,
            instructions=None if folder is not None else body,
            workspace=folder,
            workspace_mode=UNSET if mode is None else mode,
            model=None if model == "inherit" else model,
            max_iters=UNSET if max_iters is None else max_iters,
            tools=tools,
            disallowed_tools=(*(disallowed or ()), *off),
            builtin_tools=builtin,
            skills=skills or (),
            chat=chat,
            hidden=hidden,
            ask_parent=asks,
            mode=selection,
            surface="roster",
            origin=Origin(kind="file", path=path, title=title, extras=MappingProxyType(reader.extras)),
        )
    except ConfigurationError as error:
        reader.error(error.code, error.message, error.remedy or "correct it", None)
        return None


def _refuse_unfit(reader: "HeaderReader", agent_id: str) -> None:
    """What no file may be called or hold: an id that D-31 forbids, or an address and its headers (A-20)."""
    try:
        check_agent_id(agent_id, where="the file name without `.md`, which is the agent id,")
    except ConfigurationError as error:
        reader.error(error.code, error.message, f"rename the file: {error.remedy}", None)
    for key in ("url", "headers"):
        if reader.has(key):
            remedy = "declare a remote subagent in code: `SubAgent(name, description, url=…, headers=…)`"
            reader.error("remote_in_file", f"a file cannot declare `{key}`", remedy, reader.line(key))


def _builtin_tools(reader: "HeaderReader") -> BuiltinTools | Unset:
    names, _ = reader.names("builtinTools")
    if names is None:
        return UNSET
    if names == ("all",):
        return "all"
    return "named" if names == ("named",) else names


def _read(path: Path) -> str | Diagnostic:
    def refuse(code: str, message: str, remedy: str) -> Diagnostic:
        return Diagnostic(severity="error", code=code, message=message, remedy=remedy, path=path)

    try:
        if path.is_symlink():
            return refuse("symlink", "the file is a symbolic link, which is not followed", "put the file itself here")
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return refuse("not_a_file", "this is not a regular file", "rename it, or move it out of this folder")
            data = file.read(MAX_FILE_BYTES + 1)
    except IsADirectoryError:
        return refuse("not_a_file", "this is a folder, not a file", "rename it, or move it out of this folder")
    except OSError as error:
        return refuse("unreadable", f"the file cannot be read: {error.strerror}", "let this process read it, or remove it")
    if len(data) > MAX_FILE_BYTES:
        return refuse("too_large", f"the file is larger than {MAX_FILE_BYTES:,} bytes", "shorten it, or move text into files")
    if data.startswith(_UTF16):
        return refuse("not_utf8", "the file is UTF-16, not UTF-8", "save it as UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return refuse("not_utf8", f"the file is not UTF-8 (byte {error.start})", "save it as UTF-8")


def _open(path: str, flags: int) -> int:
    """Not following links, because the file may have changed since; not blocking, because a pipe waits for its other end."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
