"""Models of declarations that lead to no model."""

from collections.abc import Callable, Iterable

from retinue.errors import ConfigurationError
from retinue.subagents.declaration import SubAgent
from retinue.subagents.diagnostics import Diagnostic

__all__ = ["mistaken_models"]


def mistaken_models(declarations: Iterable[SubAgent], resolve: Callable[[str], object]) -> list[Diagnostic]:
    """A warning for each declaration whose model `resolve` refuses with `ConfigurationError`: every spawn of it will fail."""
    found: list[Diagnostic] = []
    for declaration in declarations:
        if declaration.model is None:
            continue
        try:
            resolve(declaration.model)
        except ConfigurationError as error:
            found.append(
                Diagnostic(
                    severity="warning",
                    code=error.code,
                    message=f"subagent `{declaration.name}`: {error.message}",
                    remedy=error.remedy or "correct it, or leave it out for the parent's model",
                    path=declaration.origin.path,
                )
            )
    return found
