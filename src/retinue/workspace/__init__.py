"""The workspace: the folder that an agent works in, its files, and the built-in file tools."""

from retinue.workspace.content import FileInfo
from retinue.workspace.errors import FileError
from retinue.workspace.files import WorkspaceFiles, Written
from retinue.workspace.layout import Workspace
from retinue.workspace.protect import protection
from retinue.workspace.tools import FILE_TOOLS, file_tools

__all__ = ["FILE_TOOLS", "FileError", "FileInfo", "Workspace", "WorkspaceFiles", "Written", "file_tools", "protection"]
