"""Pictures and files as parts of a Chat Completions message. Pure.

A part that is not sent is told in its line of text, always in the same words, so that the prefix does not move (M11).
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from retinue.media import placed
from retinue.messages import MediaRef, ToolResult

__all__ = ["Data", "content_of", "shown_results", "told"]

Data: TypeAlias = Mapping[str, bytes]
"""The bytes of pictures and files, by their digest."""


def told(text: str, refs: Sequence[MediaRef], why_not: Callable[[MediaRef], str]) -> str:
    """A text without its parts. `why_not` says why one is not shown, or nothing."""
    return "".join(piece if isinstance(piece, str) else _line(piece, why_not(piece)) for piece in placed(text, refs))


def content_of(text: str, refs: Sequence[MediaRef], data: Data, why_not: Callable[[MediaRef], str]) -> list[dict[str, Any]]:
    """The content of a message: texts, each part after its line."""
    content: list[dict[str, Any]] = []
    said = ""
    for piece in placed(text, refs):
        if isinstance(piece, str):
            said += piece
        elif piece.digest not in data:
            said += _line(piece, why_not(piece))
        else:
            content += [_text(said + piece.line), _part(piece, data[piece.digest])]
            said = ""
    return [*content, _text(said)] if said.strip() else content


def shown_results(results: Sequence[ToolResult], data: Data) -> list[dict[str, Any]]:
    """The content of the message after a batch: what its calls gave to be seen."""
    content: list[dict[str, Any]] = []
    for result in results:
        for ref in result.parts:
            if ref.digest in data:
                content += [_text(f"{ref.line} from `{result.name}`:"), _part(ref, data[ref.digest])]
    return content


def _line(ref: MediaRef, note: str) -> str:
    return ref.told(note) if note else ref.line


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text.strip("\n")}


def _part(ref: MediaRef, data: bytes) -> dict[str, Any]:
    url = f"data:{ref.media_type};base64,{b64encode(data).decode()}"
    if ref.what == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": ref.name or "file", "file_data": url}}
