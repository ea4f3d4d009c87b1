"""File names as text: always UTF-8, whatever the locale of the process says.

Python reads and writes names in the encoding of the locale. Under `LC_ALL=C` or a Latin one that is another, and one file would
have two names. Bytes that are no UTF-8 become lone surrogates, and back, as in Python.
"""

import os

__all__ = ["as_text", "to_system", "to_text"]


def to_system(name: str) -> bytes:
    """The bytes that the system is given for a name or path.

    Raises:
        UnicodeEncodeError: it holds half a character that stands for no byte.
    """
    return name.encode("utf-8", "surrogateescape")


def to_text(name: bytes) -> str:
    """The text of a name or path that the system gave."""
    return name.decode("utf-8", "surrogateescape")


def as_text(name: str) -> str:
    """The text of a name or path as Python made it of what the system gave."""
    return to_text(os.fsencode(name))
