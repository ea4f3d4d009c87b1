"""Events are the same however the network cuts the bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.models.sse import EventStream

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
