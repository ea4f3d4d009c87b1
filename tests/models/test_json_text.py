"""Text that any JSON parser takes, whatever went in."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.json_text import Mender, dumps, loads, mend

pytestmark = pytest.mark.case("B175")

ANY_TEXT = st.text(alphabet=st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("\ud83d\udd16 \U0001f916"))


@given(ANY_TEXT)
def test_whatever_goes_in_comes_out_as_utf8(text: str) -> None:
    assert msgspec.json.decode(dumps({"a": [text]})) == {"a": [mend(text)]}


@given(st.text())
def test_good_text_is_not_touched(text: str) -> None:
    assert mend(text) == text


@given(st.text(alphabet="a🤖é"), st.data())
def test_halves_of_a_pair_in_two_pieces_are_joined(text: str, data: st.DataObject) -> None:
    units = [
        text.encode("utf-16-le")[at : at + 2].decode("utf-16-le", "surrogatepass")
        for at in range(0, len(text.encode("utf-16-le")), 2)
    ]
    mender = Mender()
    out: list[str] = []
    while units:
        size = data.draw(st.integers(1, len(units)))
        out.append(mender.feed("".join(units[:size])))
        units = units[size:]
    out.append(mender.end())
    assert "".join(out) == text
    for piece in out:
        piece.encode()


def test_a_half_that_stays_alone_is_replaced() -> None:
    mender = Mender()
    assert mender.feed("a\ud83d") + mender.feed("b") + mender.feed("c\ud83d") + mender.end() == "a\ufffdbc\ufffd"


@pytest.mark.parametrize("data", [b'{"a": "\\ud83d"}', b'{"a": "\xff"}'])
def test_what_a_strict_parser_refuses_is_read(data: bytes) -> None:
    assert mend(loads(data)["a"]) == "\ufffd"


@pytest.mark.parametrize("data", [b"", b"{", b"<html>", b"[" * 100_000])
def test_what_is_not_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parsers' own words differ
        loads(data)
