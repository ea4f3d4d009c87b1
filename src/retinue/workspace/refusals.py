"""Why an operation on files is refused: what the system said, and what may not be touched, in words for a model."""

import errno

from retinue.workspace.errors import FileError
from retinue.workspace.paths import shown

__all__ = ["explain", "protected_error", "root_changed"]


def protected_error(path: str, what: str) -> FileError:
    """The refusal of a protected path."""
    return FileError(
        f"{shown(path)} is {what}, which no tool may read or change", code="protected", remedy="do without it, do not retry"
    )


def root_changed(how: str) -> FileError:
    """The refusal of all operations, once the root is not what it was."""
    return FileError(f"the workspace folder {how}", code="changed", remedy="stop, and tell the user")


def explain(error: OSError, path: str, *, remedy: str | None = None) -> FileError:
    """An error of the system in words for a model."""
    name = shown(path)
    match error.errno:
        case errno.ENOENT:
            return FileError(f"{name} does not exist", code="missing", remedy=remedy or "use `list_files` to see what there is")
        case errno.EXDEV:
            text = f"{name} leads out of the workspace through a link"
            return FileError(text, code="outside", remedy="use files inside of the workspace")
        case errno.ELOOP | errno.EMLINK:
            text = f"{name} goes through a symbolic link that is not followed"
            return FileError(text, code="outside", remedy="use the path of the file itself")
        case errno.ENOTDIR | errno.EEXIST:
            return FileError(f"a part of {name} is not a folder", code="not_a_directory", remedy="correct the path")
        case errno.EISDIR:
            return FileError(f"{name} is a folder", code="not_a_file", remedy="name a file in it")
        case errno.ENXIO | errno.ENODEV:
            return FileError(f"{name} is not a regular file", code="not_a_file", remedy="name another file")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            text = f"{name} cannot be accessed: {error.strerror}"
            return FileError(text, remedy="do without it, or tell the user")
        case _:
            return FileError(f"{name}: {error.strerror or error}", remedy="tell the user if it happens again")
