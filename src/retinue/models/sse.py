"""Server-sent events: bytes in, in any pieces; the data of whole events out. No I/O."""

from typing import Final

__all__ = ["MAX_EVENT", "EndlessEvent", "EventStream"]

MAX_EVENT: Final = 64 * 1024 * 1024
"""Bytes of one event: more is a server that comes to no end, and must not fill the memory."""


class EndlessEvent(ValueError):
    """An event is longer than `MAX_EVENT`."""


class EventStream:
    """Cuts a stream into events (WHATWG HTML, section 9.2). Only the data counts here; comments are dropped.

    It works on bytes, so that a character cut in two by the network is whole again before anyone decodes it.
    """

    __slots__ = ("_after_cr", "_pieces", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._pieces: list[bytes] = []
        """What has come of an event since, not joined yet: a long one in many pieces is joined once."""
        self._size = 0
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that `piece` completes, in order.

        Raises:
            EndlessEvent: it is too long already.
        """
        if self._after_cr or b"\r" in piece:
            piece = self._without_cr(piece)
        before = self._pieces[-1] if self._pieces else self._rest
        if b"\n\n" not in piece and not (piece.startswith(b"\n") and before.endswith(b"\n")):
            if piece:
                self._pieces.append(piece)
                self._size += len(piece)
            if self._size + len(self._rest) > MAX_EVENT:
                raise EndlessEvent(f"an event of the stream is longer than {MAX_EVENT:,} bytes")
            return []
        *events, self._rest = (self._joined() + piece).split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise EndlessEvent(f"an event of the stream is longer than {MAX_EVENT:,} bytes")
        return [data for event in events if (data := _data(event)) is not None]

    def end(self) -> list[bytes]:
        """What is whole although the last blank line is missing."""
        data, self._rest = _data(self._joined()), b""
        return [] if data is None else [data]

    def _joined(self) -> bytes:
        if not self._pieces:
            return self._rest
        joined = b"".join((self._rest, *self._pieces))
        self._pieces.clear()
        self._size = 0
        return joined

    def _without_cr(self, piece: bytes) -> bytes:
        """The piece with `\\n` at the end of each line, also where `\\r\\n` was cut in two."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if piece:
            self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(event: bytes) -> bytes | None:
    """The data of an event without its blank line; most are one line."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[6:] if line[5:6] == b" " else line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
