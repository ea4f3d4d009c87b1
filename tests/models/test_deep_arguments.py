"""Arguments that are nested deeper than a parser goes are kept as text: the thread can be sent again."""

from retinue.models.wire import arguments_of


def test_arguments_nested_too_deeply_are_kept_inside_an_object() -> None:
    text = "[" * 100_000
    assert arguments_of(text).startswith('{"invalid_arguments":')
