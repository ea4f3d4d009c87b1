"""Retinue: subagents for LLM agents that can be trusted.

The public face. Names are imported when they are first used, so that `import retinue` costs nothing.

>>> from retinue import HarnessAgent, SubAgent
"""

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it; `typing` itself is most of what an import would cost
if TYPE_CHECKING:
    from retinue.agent.middleware import (
        Fork,
        Middleware,
        ModelCall,
        Reasoning,
        RunCall,
        StateHandle,
        ToolInvocation,
    )
    from retinue.agent.ports import (
        CallOutcome,
        RunEnd,
    )
    from retinue.config import (
        MAX_SPAWN_DEPTH,
        AgentConfig,
        AgentInvocationModePolicy,
        AgentRunConfig,
        Budget,
        ChatClientConfig,
        Limits,
        PermissionRules,
        RuntimeContext,
        SubAgentContextPolicy,
        WorkspaceMode,
    )
    from retinue.errors import (
        ConfigurationError,
        LeaseLost,
        LedgerConflict,
        LedgerError,
        LedgerUnavailable,
        ModelError,
        RetinueError,
        ThreadBusy,
        UnknownId,
        UntrustedWorkspace,
    )
    from retinue.events import (
        Event,
        EventsDroppedEvent,
        MessageEvent,
        ModelCalledEvent,
        PermissionRequest,
        ReasoningDeltaEvent,
        RunFinishedEvent,
        RunStartedEvent,
        SubAgentInvocationCancelledEvent,
        SubAgentInvocationCompletedEvent,
        SubAgentInvocationFailedEvent,
        SubAgentInvocationStartedEvent,
        TextDeltaEvent,
        ToolCallArgsEvent,
        ToolCallEndEvent,
        ToolCallResultEvent,
        ToolCallStartEvent,
        ToolProgressEvent,
    )
    from retinue.harness import Agent, HarnessAgent, Runtime, Thread, ThreadGraph, Threads
    from retinue.harness.results import RunCancelled, RunFailed, RunResult
    from retinue.harness.tasks import Task, TaskResult
    from retinue.ledger.open import open_ledger
    from retinue.ledger.port import Ledger
    from retinue.media import File, Image
    from retinue.messages import (
        AssistantMessage,
        CallRef,
        Entry,
        ToolCall,
        ToolResult,
        Usage,
        UserMessage,
    )
    from retinue.models.openai import OpenAIChatModel
    from retinue.models.port import (
        ChatModel,
        Envelope,
        ModelAnswer,
        ModelRequest,
        ReasoningDelta,
        TextDelta,
        ToolSpec,
    )
    from retinue.models.scripted import ScriptedModel
    from retinue.secrets import SecretRef
    from retinue.states import (
        ResultStatus,
    )
    from retinue.subagents.availability import SubAgentAvailability
    from retinue.subagents.declaration import SubAgent
    from retinue.subagents.decorator import subagent
    from retinue.subagents.loading import load_subagents
    from retinue.subagents.notifications import NotifyByStrategy, NotifyNever, NotifyOnFinalState, TaskEnding
    from retinue.subagents.registry import merge_subagents
    from retinue.subagents.run_config import ClientInheritance, SubAgentRunConfig, SubAgentRunConfigFields
    from retinue.tools.decorator import tool
    from retinue.tools.errors import ToolError
    from retinue.tools.harness import ToolHarness
    from retinue.tools.port import Tool, ToolContext

_HOMES = {
    "agent.middleware": (
        "Fork",
        "Middleware",
        "ModelCall",
        "Reasoning",
        "RunCall",
        "StateHandle",
        "ToolInvocation",
    ),
    "agent.ports": (
        "CallOutcome",
        "RunEnd",
    ),
    "states": ("ResultStatus",),
    "config": (
        "MAX_SPAWN_DEPTH",
        "AgentConfig",
        "AgentInvocationModePolicy",
        "AgentRunConfig",
        "Budget",
        "ChatClientConfig",
        "Limits",
        "PermissionRules",
        "RuntimeContext",
        "SubAgentContextPolicy",
        "WorkspaceMode",
    ),
    "errors": (
        "ConfigurationError",
        "LeaseLost",
        "LedgerConflict",
        "LedgerError",
        "LedgerUnavailable",
        "ModelError",
        "RetinueError",
        "ThreadBusy",
        "UnknownId",
        "UntrustedWorkspace",
    ),
    "events": (
        "Event",
        "EventsDroppedEvent",
        "MessageEvent",
        "ModelCalledEvent",
        "PermissionRequest",
        "ReasoningDeltaEvent",
        "RunFinishedEvent",
        "RunStartedEvent",
        "SubAgentInvocationCancelledEvent",
        "SubAgentInvocationCompletedEvent",
        "SubAgentInvocationFailedEvent",
        "SubAgentInvocationStartedEvent",
        "TextDeltaEvent",
        "ToolCallArgsEvent",
        "ToolCallEndEvent",
        "ToolCallResultEvent",
        "ToolCallStartEvent",
        "ToolProgressEvent",
    ),
    "harness.agent": ("Agent",),
    "harness.harness_agent": ("HarnessAgent",),
    "harness.results": ("RunCancelled", "RunFailed", "RunResult"),
    "harness.tasks": ("Task", "TaskResult"),
    "harness.runtime": ("Runtime",),
    "harness.threads": ("Thread", "ThreadGraph", "Threads"),
    "ledger.open": ("open_ledger",),
    "ledger.port": ("Ledger",),
    "media": ("File", "Image"),
    "messages": (
        "AssistantMessage",
        "CallRef",
        "Entry",
        "ToolCall",
        "ToolResult",
        "Usage",
        "UserMessage",
    ),
    "models.openai": ("OpenAIChatModel",),
    "models.port": (
        "ChatModel",
        "Envelope",
        "ModelAnswer",
        "ModelRequest",
        "ReasoningDelta",
        "TextDelta",
        "ToolSpec",
    ),
    "models.scripted": ("ScriptedModel",),
    "secrets": ("SecretRef",),
    "subagents.availability": ("SubAgentAvailability",),
    "subagents.declaration": ("SubAgent",),
    "subagents.decorator": ("subagent",),
    "subagents.loading": ("load_subagents",),
    "subagents.registry": ("merge_subagents",),
    "subagents.notifications": ("NotifyByStrategy", "NotifyNever", "NotifyOnFinalState", "TaskEnding"),
    "subagents.run_config": ("ClientInheritance", "SubAgentRunConfig", "SubAgentRunConfigFields"),
    "tools.decorator": ("tool",),
    "tools.errors": ("ToolError",),
    "tools.harness": ("ToolHarness",),
    "tools.port": ("Tool", "ToolContext"),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [  # noqa: RUF022  # in the order of the table above
    "Agent",
    "AgentConfig",
    "AgentInvocationModePolicy",
    "AgentRunConfig",
    "AssistantMessage",
    "CallOutcome",
    "CallRef",
    "Budget",
    "ChatClientConfig",
    "ChatModel",
    "ClientInheritance",
    "ConfigurationError",
    "Entry",
    "Envelope",
    "Event",
    "EventsDroppedEvent",
    "File",
    "Fork",
    "HarnessAgent",
    "Image",
    "LeaseLost",
    "Ledger",
    "LedgerConflict",
    "LedgerError",
    "LedgerUnavailable",
    "Limits",
    "MAX_SPAWN_DEPTH",
    "MessageEvent",
    "Middleware",
    "ModelAnswer",
    "ModelCall",
    "ModelCalledEvent",
    "ModelError",
    "ModelRequest",
    "NotifyByStrategy",
    "NotifyNever",
    "NotifyOnFinalState",
    "OpenAIChatModel",
    "PermissionRequest",
    "PermissionRules",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningDeltaEvent",
    "ResultStatus",
    "RetinueError",
    "RunCall",
    "RunCancelled",
    "RunEnd",
    "RunFailed",
    "RunFinishedEvent",
    "RunResult",
    "RunStartedEvent",
    "Runtime",
    "RuntimeContext",
    "ScriptedModel",
    "SecretRef",
    "StateHandle",
    "SubAgent",
    "SubAgentAvailability",
    "SubAgentContextPolicy",
    "SubAgentInvocationCancelledEvent",
    "SubAgentInvocationCompletedEvent",
    "SubAgentInvocationFailedEvent",
    "SubAgentInvocationStartedEvent",
    "SubAgentRunConfig",
    "SubAgentRunConfigFields",
    "Task",
    "TaskResult",
    "TextDelta",
    "TextDeltaEvent",
    "TaskEnding",
    "Thread",
    "ThreadBusy",
    "ThreadGraph",
    "Threads",
    "Tool",
    "ToolCall",
    "ToolCallArgsEvent",
    "ToolCallEndEvent",
    "ToolCallResultEvent",
    "ToolCallStartEvent",
    "ToolContext",
    "ToolError",
    "ToolHarness",
    "ToolInvocation",
    "ToolProgressEvent",
    "ToolResult",
    "ToolSpec",
    "UnknownId",
    "UntrustedWorkspace",
    "Usage",
    "UserMessage",
    "WorkspaceMode",
    "load_subagents",
    "merge_subagents",
    "open_ledger",
    "subagent",
    "tool",
]


def __getattr__(name: str) -> object:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module `retinue` has no attribute `{name}`")
    value = getattr(import_module(f"retinue.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
