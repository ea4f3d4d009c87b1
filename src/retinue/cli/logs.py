"""What the library logs shown as lines of the command line, harmless for a terminal."""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager

from retinue.cli.text import one_line
from retinue.subagents.diagnostics import Diagnostic

__all__ = ["reported_to"]

LIMIT = 1_000


class _Lines(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and any(isinstance(one, Diagnostic) for one in record.args):
            return  # told once and counted, see `cli.run`
        self._say(one_line(record.getMessage(), LIMIT))


@contextmanager
def reported_to(say: Callable[[str], None]) -> Generator[None, None, None]:
    """Warnings of `retinue` go to `say` for as long as the block lasts, and nowhere else: not to a block around it either."""
    logger = logging.getLogger("retinue")
    handler, spread = _Lines(say), logger.propagate
    around = [other for other in logger.handlers if isinstance(other, _Lines)]
    for other in around:
        logger.removeHandler(other)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        for other in around:
            logger.addHandler(other)
        logger.propagate = spread
