"""The three streams of the process, also where it was started without one of them."""

import os
import sys
from typing import Final

__all__ = ["open_missing_streams"]

_STREAMS: Final = ("stdin", "stdout", "stderr")


def open_missing_streams() -> None:
    """Put the void in place of a stream that the process was started without (`>&-`), before any other file is opened:
    that one would get its number, and whatever is printed below Python would be written into the ledger."""
    for number, name in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        void = os.open(os.devnull, os.O_RDWR)
        if void != number and not _taken(number):
            os.dup2(void, number)
            os.close(void)
            void = number
        setattr(sys, name, os.fdopen(void, "w" if number else "r", encoding="utf-8", errors="replace", closefd=False))


def _taken(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
