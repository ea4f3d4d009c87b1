"""Pictures and files in a conversation: what a person or a tool gives, and how it stands in a text.

What is stored is a `MediaRef` beside the text, and the bytes once as a blob. In the text a short line says what is there,
such as `[image photo.png, 120 kB]`: whoever sees only the text sees that, and a wire puts the bytes where the line is.
"""

import re
from collections.abc import Iterable, Sequence
from os import PathLike, fsdecode
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from retinue.errors import ConfigurationError
from retinue.ids import sha256_hex
from retinue.messages import MediaRef
from retinue.near import a_kind

__all__ = ["IMAGE_TYPES", "PDF", "File", "Image", "Input", "Media", "composed", "placed", "within"]

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""What is taken wherever images are taken."""
PDF: Final = "application/pdf"

_MEDIA_TYPE: Final = r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}"
_LONGEST_NAME: Final = 100
_HEAD: Final = 1_024
"""How far into a file its kind is looked for: a PDF may begin with other bytes."""

_BY_SUFFIX: Final = {
    ".pdf": PDF,
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".html": "text/html",
    ".xml": "application/xml",
    ".json": "application/json",
    ".zip": "application/zip",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}
"""Our own table: that of the system says something else on each machine."""


class Media:
    """Bytes with a media type and a name. Use `Image` or `File`.

    Args:
        source: where the file is, which is read at once, or the bytes themselves.
        media_type: such as `application/pdf`; left out, it is told by the content and by the file's name.
        name: what it is called; left out, the file's own name.

    Raises:
        ConfigurationError: `invalid_media`: it cannot be read, is empty, or is not what it is said to be. A part that no
            provider takes would stay in its conversation and fail every turn, so it is refused where it is given.
    """

    __slots__ = ("data", "digest", "media_type", "name")

    images_only: ClassVar[bool] = False

    data: Final[bytes]
    media_type: Final[str]
    name: Final[str]
    digest: Final[str]
    """The SHA-256 of the bytes."""

    def __init__(
        self,
        source: str | PathLike[str] | bytes | bytearray | memoryview,
        *,
        media_type: str | None = None,
        name: str | None = None,
    ) -> None:
        what = type(self).__name__
        data, found = _read(what, source)
        name = _plain_name(found if name is None else name)
        if not data:
            raise _invalid(f"{_called(what, name)} is empty", "give it some bytes")
        self.data = data
        self.media_type = _checked_type(what, data, media_type, name, images_only=self.images_only)
        self.name = name
        self.digest = sha256_hex(data)

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"`{type(self).__name__}` is immutable: `{name}` cannot be set")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"`{type(self).__name__}` is immutable: `{name}` cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self.digest, self.media_type, self.name) == (other.digest, other.media_type, other.name)

    def __hash__(self) -> int:
        return hash((type(self), self.digest, self.media_type, self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(media_type={self.media_type!r}, name={self.name!r})"

    def ref(self) -> MediaRef:
        """What is stored in its place."""
        return MediaRef(digest=self.digest, media_type=self.media_type, size=len(self.data), name=self.name)


class Image(Media):
    """A picture: PNG, JPEG, GIF or WebP. `Image("photo.png")`, `Image(data)`; see `Media`."""

    __slots__ = ()

    images_only: ClassVar[bool] = True


class File(Media):
    """A file: `File("report.pdf")`, `File(data, media_type="application/pdf")`; see `Media`. Most models take PDF at most."""

    __slots__ = ()


Input: TypeAlias = str | Media | Sequence[str | Media]
"""What a run is given: a text, or texts and media in their order."""


def composed(items: Iterable[str | Media]) -> tuple[str, tuple[Media, ...]]:
    """Texts and media as one text, with a line where each part of media is, and the media in that order."""
    kept = list(items)
    lines = [item if isinstance(item, str) else item.ref().line for item in kept]
    return "\n".join(lines), tuple(item for item in kept if isinstance(item, Media))


def placed(text: str, refs: Iterable[MediaRef]) -> list[str | MediaRef]:
    """A text taken apart: each reference where its line is, and at the end where the line is gone (cut, or redacted)."""
    pieces: list[str | MediaRef] = []
    lost: list[MediaRef] = []
    start = 0
    for ref in refs:
        at = text.find(ref.line, start)
        if at < 0:
            lost.append(ref)
            continue
        pieces += [text[start:at], ref]
        start = at + len(ref.line)
    pieces.append(text[start:])
    for ref in lost:
        pieces += ["\n", ref]
    return [piece for piece in pieces if piece != ""]


def within(text: str, media: Iterable[Media], limit: int) -> tuple[str, tuple[Media, ...]]:
    """What a tool gave without what is larger than `limit` bytes: its line says so. Each has a line then, whoever wrote it."""
    kept: list[Media] = []
    for one in media:
        ref, line = one.ref(), one.ref().line
        if line not in text:
            text = f"{text}\n{line}" if text else line
        if len(one.data) <= limit:
            kept.append(one)
        else:
            text = text.replace(line, ref.told(f"left out, over the {limit:,} bytes of `Limits(max_media_bytes=…)`"), 1)
    return text, tuple(kept)


def _read(what: str, source: str | PathLike[str] | bytes | bytearray | memoryview) -> tuple[bytes, str]:
    """The bytes, and the name of the file they are from."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), ""
    if not isinstance(source, str | PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _invalid(f"`{what}(…)` is given {a_kind(source)}", "give a path or bytes")
    shown = _plain_name(fsdecode(source))
    if re.match(r"(?:https?|data|file):", shown):
        raise _invalid(f"`{what}(…)` is given the URL `{shown}`", "fetch it, and give its bytes or the file's path")
    path = Path(source)
    try:
        if path.exists() and not path.is_file():  # a device or a pipe may never end
            raise _invalid(f"`{shown}` is not a file", "give the path of a file")
        return path.read_bytes(), path.name
    except (OSError, ValueError) as error:  # (a zero byte in the path)
        because = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _invalid(f"`{shown}` cannot be read: {because}", "give the path of a file that this process may read") from error


def _checked_type(what: str, data: bytes, media_type: str | None, name: str, *, images_only: bool) -> str:
    """The media type that holds: given, found in the content, or told by the name."""
    found = _found_type(data)
    if media_type is not None and (not isinstance(media_type, str) or not re.fullmatch(_MEDIA_TYPE, media_type)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _invalid(f"`media_type` of {_called(what, name)} is `{media_type!r:.60}`", 'write it like `"application/pdf"`')
    said = media_type or found or _BY_SUFFIX.get(Path(name).suffix.lower())
    if images_only and said not in IMAGE_TYPES:
        kind = f"of type `{said}`" if said else "no PNG, JPEG, GIF or WebP"
        raise _invalid(f"{_called(what, name)} is {kind}", "convert it to PNG, or give it as `File(…)`")
    if said is None:
        raise _invalid(f"the media type of {_called(what, name)} is not known", 'give it: `media_type="…"`')
    if said != found and said in (*IMAGE_TYPES, PDF):
        raise _invalid(
            f"{_called(what, name)} is said to be `{said}`, and its content is {f'`{found}`' if found else 'something else'}",
            "leave `media_type` out, or give the right bytes",
        )
    return said


def _found_type(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return PDF if b"%PDF-" in data[:_HEAD] else None


def _plain_name(name: str) -> str:
    """A name that can stand in a line of text: a file may be called anything."""
    plain = "".join(letter if letter.isprintable() and letter not in "[]" else "_" for letter in name).strip()
    return plain if len(plain) <= _LONGEST_NAME else f"…{plain[1 - _LONGEST_NAME :]}"


def _called(what: str, name: str) -> str:
    return f"`{name}`" if name else f"`{what}(…)`"


def _invalid(message: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(message, code="invalid_media", remedy=remedy)
