"""Docstrings in the three usual forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.tools.docstrings import parse_docstring

GOOGLE = """Find things.

    More text.

    Args:
        query (str): what to find
            and how
        limit: how many: at most

    Returns:
        query: not a parameter
    """

NUMPY = """Find things.

    More text.

    Parameters
    ----------
    query : str
        what to find
        and how
    limit : int, optional
        how many: at most

    Returns
    -------
    query
        not a parameter
    """

REST = """Find things.

    More text.

    :param str query: what to find
        and how
    :param limit: how many: at most
    :returns: nothing
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, REST])
def test_three_forms_say_the_same(docstring: str) -> None:
    read = parse_docstring(docstring)
    assert read.text == "Find things.\n\nMore text."
    assert read.parameters == {"query": "what to find and how", "limit": "how many: at most"}


def test_sections_at_the_start_and_text_after_them() -> None:
    read = parse_docstring("Args:\n    x: one\n\nFree text: stays out of the parameters.")
    assert read.parameters == {"x": "one"}
    assert read.text == ""


@pytest.mark.parametrize("docstring", [None, "", "   \n  "])
def test_nothing_gives_nothing(docstring: str | None) -> None:
    assert parse_docstring(docstring) == ("", {})


def test_a_sentence_that_begins_like_a_section_is_text() -> None:
    assert parse_docstring("Notes:\nare not indented here").text == "Notes:\nare not indented here"


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    read = parse_docstring(text)
    assert all(name.isidentifier() or name for name in read.parameters)
