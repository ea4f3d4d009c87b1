"""Every error that Retinue raises. The last two carry a result, and stand where results are: `retinue.harness.results`.

    RetinueError
    ├── ConfigurationError         what was declared cannot work (TypeError-like faults of a call included)
    │   └── UntrustedWorkspace     agent files that nobody has confirmed yet
    ├── LedgerError                the store
    │   ├── LedgerConflict         a condition of a commit did not hold; names the op
    │   ├── LedgerUnavailable      disk full, unreadable, wrong version
    │   └── LeaseLost              another process has taken this run over
    ├── ModelError                 a model call failed; says whether a retry may help
    ├── UnknownId                  no such thread, run, request … in this scope
    ├── ThreadBusy                 the thread has a run that is not finished
    ├── RunFailed                  a run ended failed; `.result` holds what there is
    └── RunCancelled               a run ended cancelled; `.result` holds what there is

Each carries a stable `code`, the message, and a `remedy` that says what to do. Names stand in backticks.
"""

from typing import Any

__all__ = [
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
]


class RetinueError(Exception):
    """The root. `code` is stable and for programs, `message` and `remedy` are for people."""

    default_code = "error"

    def __init__(self, message: str, *, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.remedy = remedy

    def __str__(self) -> str:
        if not self.remedy:
            return self.message
        return f"{_closed(self.message)} {_closed(self.remedy[0].upper() + self.remedy[1:])}"


def _closed(sentence: str) -> str:
    """With the one mark at its end that it needs."""
    return sentence if sentence.endswith((".", "?", "!", "…")) else f"{sentence}."


class ConfigurationError(RetinueError):
    """A declaration, a setting or a call that cannot work. Raised as early as it can be known (D-27)."""

    default_code = "configuration"


class UntrustedWorkspace(ConfigurationError):
    """The workspace holds agent files that nobody has confirmed (D-23)."""

    default_code = "untrusted_workspace"


class LedgerError(RetinueError):
    """The ledger refused or could not carry out a commit or a read."""

    default_code = "ledger"


class LedgerConflict(LedgerError):
    """A condition of one op of a commit did not hold; nothing of that commit was written.

    `op` is the op that failed, `code` says how: `head_moved`, `exists`, `missing`, `state`, `taken`, `cancelled`.
    """

    default_code = "conflict"

    def __init__(self, message: str, *, op: Any, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.op = op


class LedgerUnavailable(LedgerError):
    """The store cannot be used: disk full, no permission, a newer version, a network file system, closed."""

    default_code = "ledger_unavailable"


class LeaseLost(LedgerError):
    """Another process has taken this run over; this one writes nothing more (M3)."""

    default_code = "lease_lost"


class ModelError(RetinueError):
    """A model call failed. Never contains a key.

    `retryable` says whether the same request may succeed later; `retry_after` is in seconds where the provider said it.
    Codes: `unreachable`, `timeout`, `stream_broken`, `authentication`, `rate_limited`, `overloaded`, `context_overflow`,
    `model_not_found`, `bad_request`, `bad_response`, `answer_too_long`, `missing_key`.
    """

    default_code = "model"

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        model: str,
        code: str | None = None,
        remedy: str | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.provider = provider
        self.model = model
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status


class UnknownId(RetinueError):
    """Nothing with this id in the caller's scope; an id of another scope is unknown too (invariant 8)."""

    default_code = "unknown_id"


class ThreadBusy(RetinueError):
    """The thread has a run that is not finished: it is running elsewhere, interrupted, or waiting for an answer."""

    default_code = "thread_busy"
