"""Server-sent events: bytes in, in any pieces; the data of whole events out. No I/O."""

__all__ = ["EventStream"]


class EventStream:
    """Cuts a stream into events (WHATWG HTML, section 9.2). Only the data counts here; comments are dropped.

    It works on bytes, so that a character cut in two by the network is whole again before anyone decodes it.
    """

    __slots__ = ("_after_cr", "_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that `piece` completes, in order."""
        if piece:
            if self._after_cr and piece.startswith(b"\n"):
                piece = piece[1:]
            self._after_cr = piece.endswith(b"\r")
        text = self._rest + piece
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = text.split(b"\n")
        self._rest = lines.pop()
        return [event for line in lines if (event := self._line(line)) is not None]

    def end(self) -> list[bytes]:
        """What is whole although the last blank line is missing."""
        events = [event for event in (self._line(self._rest), self._line(b"")) if event is not None]
        self._rest = b""
        return events

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        return None
