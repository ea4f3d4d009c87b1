"""The layout of a workspace folder: where its ledger, instructions, subagents and agents' folders are.

AGENTS.md                   instructions of the main agent
subagents/*.md              declarations of subagents
agents/<agent id>/          folders of agents: `workspace/` where an isolated one works, `tasks/` its records
.retinue/                   ledger, trust; mode 0700, ignored by git, closed to every tool
"""

import errno
import os
import stat
from pathlib import Path
from shlex import quote
from typing import Any, Final, Self, cast

from retinue.errors import ConfigurationError
from retinue.ids import agent_folder, check_agent_id
from retinue.workspace.content import replace_file
from retinue.workspace.errors import FileError
from retinue.workspace.files import WorkspaceFiles
from retinue.workspace.protect import STATE_DIR

__all__ = ["Workspace"]

MAX_INSTRUCTIONS: Final = 1024 * 1024
"""Bytes of an `AGENTS.md`."""

_TRUST: Final = "trust.json"


class Workspace:
    """A workspace folder. Made by `open`; nothing is written until `ensure_state`, `agent_workspace` or `trust`."""

    def __init__(self, files: WorkspaceFiles) -> None:
        self.files = files
        self.root = files.root

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The workspace at `path`, which must exist: a mistyped path must not become a new folder.

        Raises:
            ConfigurationError: `invalid_workspace`: it is missing, not a directory, or cannot be read or written.
        """
        root = Path(path)
        try:
            mode = os.stat(root).st_mode
        except OSError as error:
            missing = error.errno == errno.ENOENT
            fault = "does not exist" if missing else f"cannot be reached ({error.strerror})"
            raise _invalid(root, fault, "create the folder first, or correct the path") from error
        except ValueError as error:
            raise _invalid(root, f"is no path ({error})", "correct the path") from error
        if not stat.S_ISDIR(mode):
            raise _invalid(root, "is not a directory", "name the folder that the agent works in")
        effective = os.access in os.supports_effective_ids
        if not os.access(root, os.R_OK | os.X_OK, effective_ids=effective):
            raise _invalid(root, "cannot be read", "give this user the rights to read it")
        if not os.access(root, os.W_OK, effective_ids=effective):
            raise _invalid(root, "cannot be written", "give this user the rights to write it, or use a copy")
        return cls(WorkspaceFiles(root))

    @property
    def state_dir(self) -> Path:
        """`.retinue/`: may not exist yet, see `ensure_state`."""
        return self.root / STATE_DIR

    @property
    def ledger_path(self) -> Path:
        """The ledger's file."""
        return self.state_dir / "ledger.sqlite3"

    @property
    def instructions_path(self) -> Path:
        """`AGENTS.md`."""
        return self.root / "AGENTS.md"

    @property
    def subagents_dir(self) -> Path:
        """The shared declarations."""
        return self.root / "subagents"

    def agent_dir(self, agent_id: str) -> Path:
        """The folder of an agent (D-31: one name, reversible).

        Raises:
            ConfigurationError: the id is not valid.
        """
        return self.root / "agents" / agent_folder(check_agent_id(agent_id))

    def tasks_dir(self, agent_id: str) -> Path:
        """Where the task records of an agent's sessions are shown (D-17)."""
        return self.agent_dir(agent_id) / "tasks"

    def agent_workspace(self, agent_id: str) -> Path:
        """Where an isolated agent without a folder of its own works, made on demand (A-10).

        Raises:
            ConfigurationError: the id is not valid, or the folder leads elsewhere or cannot be made (never another one
                instead).
        """
        path = self.agent_dir(agent_id) / "workspace"
        self._make_folder(path)
        return path

    def ensure_state(self) -> Path:
        """Make `.retinue/` with mode 0700 and a `.gitignore` of its own, if need be.

        Raises:
            ConfigurationError: it is a link or no folder, or cannot be made.
        """
        self._make_folder(self.state_dir, mode=0o700)
        ignore = self.state_dir / ".gitignore"
        if not ignore.exists():
            self._write_state(ignore.name, "*\n")
        return self.state_dir

    def read_instructions(self) -> str:
        """The text of `AGENTS.md`, "" if there is none; bytes that are not UTF-8 are replaced.

        Raises:
            ConfigurationError: it cannot be read, leads out of the workspace, or is too large.
        """
        try:
            return self.files.read_text("AGENTS.md", max_bytes=MAX_INSTRUCTIONS).removeprefix("\ufeff")
        except FileError as error:
            if error.code == "missing":
                return ""
            raise ConfigurationError(
                f"the instructions of workspace `{self.root}` cannot be used: {error.message}",
                code="invalid_instructions",
                remedy="put a text file there, or remove it",
            ) from error

    def is_trusted(self, fingerprint: str | None = None) -> bool:
        """Whether a person has confirmed the agent files of this folder (D-23); with a fingerprint, exactly these files.

        The record counts only in the folder that it was made for: one that came with a copied or downloaded folder does not.
        """
        import json

        try:
            with open(os.open(self.state_dir / _TRUST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
                record: object = json.loads(file.read(10_000))
        except (OSError, ValueError):
            return False
        if not isinstance(record, dict):
            return False
        fields = cast("dict[str, Any]", record)
        return fields.get("place") == self._place() and fingerprint in (None, fields.get("fingerprint"))

    @property
    def trust_command(self) -> str:
        """What a person types to confirm the agent files of this folder."""
        return f"retinue run --trust --workspace {quote(str(self.root))} TASK"

    def trust(self, fingerprint: str | None = None) -> None:
        """Record that a person has confirmed the agent files of this folder."""
        import json

        self.ensure_state()
        record = {"version": 1, "place": self._place(), "fingerprint": fingerprint}
        self._write_state(_TRUST, json.dumps(record) + "\n")

    def _place(self) -> list[str | int]:
        """What a file in a foreign folder cannot know: the path and the numbers that the file system gave its folders."""
        return [str(self.root), os.stat(self.root).st_ino, os.lstat(self.state_dir).st_ino]

    def _write_state(self, name: str, text: str) -> None:
        try:
            folder = os.open(self.state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                replace_file(folder, name, text.encode(), None, name)
            finally:
                os.close(folder)
        except (OSError, FileError) as error:
            raise _invalid(self.state_dir, f"cannot be written ({error})", "check its rights and the free space") from error

    def _make_folder(self, path: Path, *, mode: int = 0o777) -> None:
        """Make a folder below the root, and its parents; refuse links, which could lead anywhere."""
        current = self.root
        for name in path.relative_to(self.root).parts:
            current = current / name
            try:
                try:
                    os.mkdir(current, mode)
                except FileExistsError:
                    pass
                found = os.lstat(current).st_mode
            except OSError as error:
                raise _invalid(current, f"cannot be made ({error.strerror})", "check rights and free space") from error
            if not stat.S_ISDIR(found):
                raise _invalid(current, "is not a folder (links are not followed here)", "remove it or put a folder there")
        if mode != 0o777 and stat.S_IMODE(os.lstat(path).st_mode) != mode:
            os.chmod(path, mode)


def _invalid(path: Path, fault: str, remedy: str) -> ConfigurationError:
    shown = str(path).encode("utf-8", "replace").decode().replace("\0", "\\0")
    return ConfigurationError(f"workspace `{shown}` {fault}", code="invalid_workspace", remedy=remedy)
