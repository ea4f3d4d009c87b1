"""Tools: what a capability is, `@tool`, `ToolHarness`, and the threads that synchronous tools run in.

Importing this folder does not import pydantic; the first schema does.
"""

from retinue.tools.decorator import CAPABILITY, function_tool, tool
from retinue.tools.errors import BadArguments, ToolError
from retinue.tools.function_tool import FunctionTool, ToolDeclaration
from retinue.tools.harness import Member, ToolHarness, collect, collect_members
from retinue.tools.pool import RunningCall, ToolThreads
from retinue.tools.port import Capability, Tool, ToolContext, ToolFlags, ToolOutput
from retinue.tools.references import class_reference, reference_of

__all__ = [
    "CAPABILITY",
    "BadArguments",
    "Capability",
    "FunctionTool",
    "Member",
    "RunningCall",
    "Tool",
    "ToolContext",
    "ToolDeclaration",
    "ToolError",
    "ToolFlags",
    "ToolHarness",
    "ToolOutput",
    "ToolThreads",
    "class_reference",
    "collect",
    "collect_members",
    "function_tool",
    "reference_of",
    "tool",
]
