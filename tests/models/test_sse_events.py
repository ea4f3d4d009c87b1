"""Events are the same however the network cuts the bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.models import sse
from retinue.models.sse import EndlessEvent, EventStream

WANTED = ['{"text":"é🤖"}'.encode(), b"two\nlines", b"[DONE]"]
STREAM = ': comment\nevent: x\ndata: {"text":"é🤖"}\n\ndata:two\ndata: lines\nid: 1\n\n\n\ndata: [DONE]\n\n'.encode()


@given(st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, len(STREAM) * 2), max_size=40))
def test_any_cut_gives_the_same_events(ending: bytes, cuts: list[int]) -> None:
    stream = STREAM.replace(b"\n", ending)
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    events = EventStream()
    found: list[bytes] = []
    for start, end in pairwise(places):
        found += events.feed(stream[start:end])
    assert found + events.end() == WANTED


def test_the_last_event_counts_although_its_blank_line_is_missing() -> None:
    events = EventStream()
    assert events.feed(b"data: a") == []
    assert events.end() == [b"a"]


@pytest.mark.parametrize("rest", [b"", b": comment", b"event: x"])
def test_nothing_is_no_event(rest: bytes) -> None:
    events = EventStream()
    assert events.feed(rest) + events.end() == []


@pytest.mark.parametrize("piece", [b"x" * 10, b"x\n" * 5])
def test_an_event_that_comes_to_no_end_is_refused(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    events = EventStream()

    def feed(times: int) -> None:
        for _ in range(times):
            events.feed(piece)

    feed(9)
    with pytest.raises(EndlessEvent, match="100 bytes"):
        feed(3)


def test_a_long_line_in_many_pieces_is_joined_once() -> None:
    """Its pieces are kept as they come: what is joined does not grow with each of them."""
    events = EventStream()
    events.feed(b"data: ")
    for _ in range(10_000):
        events.feed(b"x" * 10)
    assert len(events._rest) <= 6
    assert events.feed(b"\n\ndata: y\n\n") == [b"x" * 100_000, b"y"]
    for _ in range(10_000):
        events.feed(b"data: x\n")
    assert len(events._rest) <= 6
    assert events.feed(b"\n") == [b"\n".join([b"x"] * 10_000)]
