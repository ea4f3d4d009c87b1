"""Server-sent events: bytes in, in any pieces; the data of whole events out. No I/O."""

__all__ = ["EventStream"]


class EventStream:
    """Cuts a stream into events (WHATWG HTML, section 9.2). Only the data counts here; comments are dropped.

    It works on bytes, so that a character cut in two by the network is whole again before anyone decodes it.
    """

    __slots__ = ("_after_cr", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that `piece` completes, in order."""
        if self._after_cr or b"\r" in piece:
            piece = self._without_cr(piece)
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        return [data for event in events if (data := _data(event)) is not None]

    def end(self) -> list[bytes]:
        """What is whole although the last blank line is missing."""
        data, self._rest = _data(self._rest), b""
        return [] if data is None else [data]

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
