"""Media as given: what is no picture or file is refused where it is made, and a line of text says what is there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue import ConfigurationError, File, Image
from retinue.media import Media, composed, placed, within
from retinue.messages import MediaRef

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
JPEG = b"\xff\xd8\xff\xe0" + b"pixels"
PDF = b"%PDF-1.4\n"


def ref(name: str = "a.png", size: int = 14, media_type: str = "image/png") -> MediaRef:
    return MediaRef(digest="0" * 64, media_type=media_type, size=size, name=name)


@pytest.mark.parametrize(
    ("made", "media_type", "line"),
    [
        (lambda: Image(PNG), "image/png", "[image/png, 14 bytes]"),
        (lambda: Image(bytearray(JPEG), name="a.jpg"), "image/jpeg", "[image a.jpg, 10 bytes]"),
        (lambda: Image(memoryview(b"GIF89a")), "image/gif", "[image/gif, 6 bytes]"),
        (lambda: Image(b"RIFF\0\0\0\0WEBPVP8 "), "image/webp", "[image/webp, 16 bytes]"),
        (lambda: File(PDF), "application/pdf", "[application/pdf, 9 bytes]"),
        (lambda: File(b"a,b", name="t.csv"), "text/csv", "[file t.csv, 3 bytes]"),
        (lambda: File(b"\0" * 1_500, media_type="application/x-tar", name="t"), "application/x-tar", "[file t, 1 kB]"),
        (lambda: File(PNG, name="b"), "image/png", "[image b, 14 bytes]"),
    ],
)
def test_the_type_is_told_by_the_content_or_the_name(made: Callable[[], Media], media_type: str, line: str) -> None:
    media = made()
    assert (media.media_type, media.ref().line) == (media_type, line)
    assert media.ref().size == len(media.data)
    assert "pixels" not in repr(media)


def test_a_path_is_read_at_once_and_gives_its_name(tmp_path: Path) -> None:
    path = tmp_path / "photo [1].png"
    path.write_bytes(PNG)
    image = Image(path)
    path.unlink()
    assert (image.data, image.name) == (PNG, "photo _1_.png")
    path.write_bytes(PNG)
    assert Image(str(path)) == image
    with pytest.raises(AttributeError):
        image.data = b""  # type: ignore[misc]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Image(b""), "is empty"),
        (lambda: Image(b"<svg/>"), "no PNG, JPEG, GIF or WebP"),
        (lambda: Image(PDF, name="a.pdf"), "`a.pdf` is of type `application/pdf`"),
        (lambda: Image(PNG, media_type="image/tiff"), "of type `image/tiff`"),
        (lambda: Image(PNG, media_type="image/jpeg"), "said to be `image/jpeg`, and its content is `image/png`"),
        (lambda: Image(b"text", media_type="image/png"), "its content is something else"),
        (lambda: Image(b"text", name="a.png"), "its content is something else"),
        (lambda: File(b"text", media_type="application/pdf"), "its content is something else"),
        (lambda: File(b"text"), "media type of `File(…)` is not known"),
        (lambda: File(b"text", media_type="pdf"), "is `'pdf'`"),
        (lambda: File(b"text", media_type="text/plain; charset=utf-8"), "`media_type` of"),
        (lambda: File(b"text", media_type="Text/Plain"), "`media_type` of"),
        (lambda: File(b"text", media_type=7), "is `7`"),  # type: ignore[arg-type]
        (lambda: Image("https://example.com/a.png"), "the URL"),
        (lambda: Image("data:image/png;base64,AA=="), "the URL"),
        (lambda: Image("no/such/file.png"), "cannot be read: No such file"),
        (lambda: Image("a\0b.png"), "cannot be read"),
        (lambda: Image("."), "is not a file"),
        (lambda: File("/dev/zero", media_type="text/plain"), "is not a file"),
        (lambda: Image(7), "is given an `int`"),  # type: ignore[arg-type]
        (lambda: Image(None), "is given a `NoneType`"),  # type: ignore[arg-type]
    ],
)
def test_what_no_provider_would_take_is_refused_where_it_is_given(made: Callable[[], Media], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made()
    assert caught.value.code == "invalid_media"
    assert words in str(caught.value)
    assert caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    path.chmod(0)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        Image(path)


@pytest.mark.parametrize(
    "name", ["a\nb\x1b[31m.png", "half \ud83d.png", "x" * 500 + ".png", "a]\u202eb", os.fsdecode(b"\xff.png")]
)
def test_a_name_is_one_line_that_steers_nothing(name: str) -> None:
    line = Image(PNG, name=name).ref().line
    line.encode()
    assert line.isprintable()
    assert line.count("]") == 1
    assert len(line) < 130


@pytest.mark.parametrize(
    ("size", "told"), [(999, "999 bytes"), (1_000, "1 kB"), (120_499, "120 kB"), (999_999, "999 kB"), (10_000_000, "10.0 MB")]
)
def test_sizes_in_words(size: int, told: str) -> None:
    assert ref(size=size).line == f"[image a.png, {told}]"


def test_a_text_has_a_line_for_each_part_and_is_taken_apart_there() -> None:
    first, second = Image(PNG, name="a.png"), File(PDF, name="b.pdf")
    text, media = composed(["Compare", first, "with", second, "please."])
    assert text == "Compare\n[image a.png, 14 bytes]\nwith\n[file b.pdf, 9 bytes]\nplease."
    assert media == (first, second)
    assert placed(text, [one.ref() for one in media]) == ["Compare\n", first.ref(), "\nwith\n", second.ref(), "\nplease."]


def test_what_has_lost_its_line_stands_at_the_end() -> None:
    assert placed("cut", [ref()]) == ["cut", "\n", ref()]
    assert placed("", [ref()]) == ["\n", ref()]
    assert placed(ref().line, [ref(), ref()]) == [ref(), "\n", ref()]


@given(st.lists(st.one_of(st.text(), st.integers(0, 3).map(lambda n: Image(PNG + bytes([n]))))))
def test_whatever_is_composed_comes_apart_whole(items: list[str | Media]) -> None:
    text, media = composed(items)
    pieces = placed(text, [one.ref() for one in media])
    assert [one for one in pieces if isinstance(one, MediaRef)] == [one.ref() for one in media]
    assert "".join(one if isinstance(one, str) else one.line for one in pieces).startswith(text)


def test_what_is_too_large_leaves_a_line_that_says_so() -> None:
    small, large = Image(PNG, name="s.png"), Image(PNG * 9, name="l.png")
    text, media = composed(["Two:", small, large])
    left, kept = within(text, media, 20)
    assert kept == (small,)
    assert left.splitlines()[2] == "[image l.png, 126 bytes: left out, over the 20 bytes of `Limits(max_media_bytes=…)`]"


def test_what_has_no_line_is_given_one() -> None:
    image = Image(PNG, name="s.png")
    assert within("Look.", [image], 20) == (f"Look.\n{image.ref().line}", (image,))
    assert within("", [image], 20) == (image.ref().line, (image,))
    assert within("", [image], 5)[0].startswith("[image s.png, 14 bytes: left out")


def _values() -> list[Any]:
    return [Image(PNG), File(PDF)]


def test_media_are_values() -> None:
    assert _values() == _values()
    assert len({*_values(), *_values()}) == 2
