"""Why a path or a file operation is refused, in words for the model."""

from retinue.tools.errors import ToolError

__all__ = ["FileError"]


class FileError(ToolError):
    """A file operation that is refused or failed. Codes: `invalid_path`, `outside`, `protected`, `missing`, `not_a_file`,
    `not_a_directory`, `too_large`, `binary`, `changed`, `no_match`, `failed`."""

    default_code = "failed"
