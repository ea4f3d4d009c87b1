"""The exception with which a tool's author tells the model something in exact words."""

from retinue.errors import RetinueError

__all__ = ["BadArguments", "ToolError"]


class ToolError(RetinueError):
    """Raise it in a tool: the model reads exactly this message (and remedy), without a type name before it.

    >>> raise ToolError("no booking under that number", remedy="ask the customer for it again")
    """

    default_code = "tool"


class BadArguments(ToolError):
    """The arguments of a call do not fit the tool's parameters; the message says what to correct."""

    default_code = "bad_arguments"
