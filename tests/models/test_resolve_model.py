"""A text names a model, or it is an error: never a silent fall-back (A-18)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.errors import ConfigurationError
from retinue.models import OpenAIChatModel, ScriptedModel, reference_of, resolve_model
from retinue.models.port import ChatModel
from retinue.models.profiles import KNOWN

pytestmark = [pytest.mark.contract("A-18"), pytest.mark.case("B187", "B188")]


@pytest.mark.parametrize(
    ("text", "provider", "name", "base_url"),
    [
        ("openai:gpt-5", "openai", "gpt-5", "https://api.openai.com/v1"),
        (" openai:gpt-5 ", "openai", "gpt-5", "https://api.openai.com/v1"),
        ("openrouter:qwen/qwen3-max:free", "openrouter", "qwen/qwen3-max:free", "https://openrouter.ai/api/v1"),
        ("ollama:llama3.2:3b", "ollama", "llama3.2:3b", "http://127.0.0.1:11434/v1"),
        ("http://127.0.0.1:8080/v1#qwen", "127.0.0.1:8080", "qwen", "http://127.0.0.1:8080/v1"),
        ("https://models.example.org/v1/#a/b", "models.example.org", "a/b", "https://models.example.org/v1"),
        ("https://api.openai.com/v1#gpt-5", "openai", "gpt-5", "https://api.openai.com/v1"),
    ],
)
def test_forms(text: str, provider: str, name: str, base_url: str) -> None:
    model = resolve_model(text)
    assert isinstance(model, OpenAIChatModel)
    assert (model.provider, model.name, model.profile.base_url) == (provider, name, base_url)


@given(st.sampled_from(sorted(KNOWN)), st.text(alphabet="abz019-._:/", min_size=1, max_size=20))
def test_a_reference_resolves_to_the_same_model(provider: str, name: str) -> None:
    model = resolve_model(f"{provider}:{name}")
    reference = reference_of(model)
    assert reference is not None
    again = resolve_model(reference)
    assert isinstance(model, OpenAIChatModel)
    assert isinstance(again, OpenAIChatModel)
    assert (again.provider, again.name, again.profile) == (model.provider, model.name, model.profile)


def test_a_url_resolves_again() -> None:
    reference = reference_of(resolve_model("http://127.0.0.1:8080/v1#qwen"))
    assert reference == "http://127.0.0.1:8080/v1#qwen"


def test_a_scripted_model_resolves_again(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('["x"]')
    model = resolve_model(f"scripted:{path}")
    assert isinstance(model, ScriptedModel)
    assert reference_of(model) == f"scripted:{path}"


def test_what_has_no_reference_must_be_registered() -> None:
    assert reference_of(ScriptedModel(["x"])) is None


def test_registered_names() -> None:
    mine = ScriptedModel(["x"])
    names: dict[str, ChatModel | str] = {"mine": mine, "fast": "openai:gpt-5-mini", "alias": "fast", "loop": "loop"}
    assert resolve_model("mine", registered=names) is mine
    assert resolve_model("alias", registered=names).name == "gpt-5-mini"
    assert resolve_model("made", registered={"made": lambda: mine}) is mine
    with pytest.raises(ConfigurationError):
        resolve_model("loop", registered=names)


@pytest.mark.parametrize(
    ("parent", "name", "provider"),
    [
        ("openai", "gpt-5-mini", "openai"),
        ("openai:gpt-5", "gpt-5-mini", "openai"),
        ("openai", "ft:gpt-4o:me::1", "openai"),
        ("ollama", "llama3.2:3b", "ollama"),
        ("http://127.0.0.1:8080/v1#big", "small", "127.0.0.1:8080"),
    ],
)
def test_a_bare_name_is_one_of_the_parents_provider(parent: str, name: str, provider: str) -> None:
    model = resolve_model(name, parent_provider=parent)
    assert (model.provider, model.name) == (provider, name)


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        ("gpt-5", None),
        ("opnai:gpt-5", "openai"),
        ("foo:bar", "openai"),
        ("gpt-5", "scripted"),
        ("", "openai"),
        ("openai:", "openai"),
    ],
)
def test_nothing_else_is_a_model(text: str, parent: str | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_model(text, parent_provider=parent)
    error = caught.value
    assert error.code == "unknown_model"
    assert f"`{text}`" in error.message
    for form in ("`openai:gpt-5`", "`http://127.0.0.1:8080/v1#name`", "`scripted:file.json`", "registered", "openrouter"):
        assert form in (error.remedy or "")


def test_near_names_are_offered() -> None:
    for text, near in (("opnai:gpt-5", "`openai:gpt-5`"), ("fsat", "`fast`"), ("scriptd:x.json", "`scripted:x.json`")):
        with pytest.raises(ConfigurationError) as caught:
            resolve_model(text, registered={"fast": "openai:gpt-5-mini"})
        assert f"did you mean {near}" in (caught.value.remedy or "")


def test_a_url_without_a_name() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_model("http://127.0.0.1:8080/v1")
    assert caught.value.code == "unknown_model"


def test_a_file_cannot_send_a_key_to_its_own_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    for text, url_keys, key in (
        ("https://evil.example/v1#m", True, "sk-secret"),
        ("https://evil.example/v1#m", False, None),
        ("http://api.openai.com/v1#m", False, None),
        ("https://api.openai.com.evil.example/v1#m", False, None),
        ("https://api.openai.com/v1#m", False, "sk-secret"),
    ):
        model = resolve_model(text, url_keys=url_keys)
        assert isinstance(model, OpenAIChatModel)
        assert model._key()[0] == key
