"""The algebra of rights: what a rule matches, what a set says, and that a chain never widens (M10, D-29)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config import PermissionRules, Verdict
from retinue.errors import ConfigurationError
from retinue.permissions.rules import Rule, decide, opinion, parse_rule, stricter

DENY, ASK, ALLOW = Verdict.DENY, Verdict.ASK, Verdict.ALLOW
RANK = {DENY: 0, ASK: 1, ALLOW: 2}

rule_texts = st.sampled_from(
    ["read", "write", "write(src/*)", "write(src/a?)", "w*", "*", "*(.env)", "execute(git *)", "execute", "execute(*)"]
)
rule_sets = st.builds(
    PermissionRules,
    allow=st.lists(rule_texts, max_size=3),
    ask=st.lists(rule_texts, max_size=3),
    deny=st.lists(rule_texts, max_size=2),
)
verdicts = st.sampled_from(list(Verdict))
tools = st.sampled_from(["read", "write", "execute", "other"])
arguments = st.sampled_from([None, "", "src/a", "src/ab", "src/../.env", ".env", "git log", "git log; rm x", "SRC/A"])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("read_file", Rule("read_file")),
        (" write_file ( src/* ) ", Rule("write_file", " src/* ")),
        ("execute(echo (a) b)", Rule("execute", "echo (a) b")),
        ("mcp__*", Rule("mcp__*")),
        ("t()", Rule("t", "")),
    ],
)
def test_a_rule_is_read(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize("text", ["", "  ", "(x)", "write(src", "write(a)b"])
def test_a_rule_that_cannot_be_read_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ConfigurationError, match="permission rule") as caught:
        parse_rule(text)
    assert caught.value.remedy


def test_inside_a_set_deny_beats_ask_beats_allow_and_silence_is_no_opinion() -> None:
    rules = PermissionRules(allow=["*"], ask=["write*"], deny=["write(secret/*)"])
    assert opinion(rules, "read", "x") is ALLOW
    assert opinion(rules, "write", "x") is ASK
    assert opinion(rules, "write", "secret/deep/key") is DENY
    assert opinion(PermissionRules(deny=["write(a)"]), "write", "b") is None
    assert opinion(PermissionRules(deny=["write(a)"]), "write", None) is None


@pytest.mark.case("B090")
@pytest.mark.parametrize(
    "path",
    ["src/../.env", "src/./../.env", "src//../.env", "src/a/../../.env", "src\\..\\.env", "src/x://../../../.env", "src/.."],
)
def test_a_path_cannot_leave_an_allowed_folder_by_its_spelling(path: str) -> None:
    assert opinion(PermissionRules(allow=["write(src/*)"]), "write", path) is None


@pytest.mark.parametrize("path", ["src/a.py", "src/deep/er/a.py", "src/./a.py", "src//a.py", "src/x/../a.py", "src/a://b"])
def test_a_star_covers_the_whole_tree_below(path: str) -> None:
    assert opinion(PermissionRules(allow=["write(src/*)"]), "write", path) is ALLOW


@pytest.mark.case("B090")
@pytest.mark.parametrize(
    "path",
    [".env", "./.env", ".//.env", "a/../.env", " .env ", ".ENV", "a\\..\\.env", ".env/", ".env/."],
)
def test_a_denied_path_is_denied_in_every_spelling(path: str) -> None:
    assert opinion(PermissionRules(allow=["*"], deny=["read(.env)"]), "read", path) is DENY


def test_a_leading_double_slash_is_one() -> None:
    assert opinion(PermissionRules(deny=["read(/etc/*)"]), "read", "//etc/passwd") is DENY


def test_a_web_address_is_not_taken_for_a_detour() -> None:
    rules = PermissionRules(allow=["fetch(https://example.org/*)"])
    assert opinion(rules, "fetch", "https://example.org/a?b=1&c=2") is ALLOW
    assert opinion(rules, "fetch", "https://example.org/../../x") is None


@pytest.mark.parametrize(
    "command", ["git log; rm x", "git log && rm x", "git log | sh", "git `rm x`", "git $(rm x)", "git a\nrm x"]
)
def test_an_allowed_command_does_not_carry_a_second_one(command: str) -> None:
    assert opinion(PermissionRules(allow=["execute(git *)"]), "execute", command) is None
    assert opinion(PermissionRules(allow=["execute"]), "execute", command) is ALLOW
    assert opinion(PermissionRules(deny=["execute(git *)"]), "execute", command) is DENY


def test_only_star_and_question_mark_are_special() -> None:
    assert opinion(PermissionRules(allow=["t(a[b].c)"]), "t", "a[b].c") is ALLOW
    assert opinion(PermissionRules(allow=["t(a[b].c)"]), "t", "abxc") is None
    assert opinion(PermissionRules(allow=["t(a?c*)"]), "t", "a\nc") is ALLOW
    assert opinion(PermissionRules(allow=["t(*a*b*)"]), "t", "xaxbx") is ALLOW


def test_matching_stays_fast_on_hostile_arguments() -> None:
    rules = PermissionRules(deny=[f"t({'*a' * 30}*z)"])
    assert opinion(rules, "t", "a" * 20_000) is None


def test_the_roots_opinion_or_else_the_tools_need() -> None:
    assert decide([], "t", None, ASK).verdict is ASK
    assert decide([PermissionRules()], "t", None, ASK).verdict is ASK
    assert decide([PermissionRules(allow=["t"])], "t", None, ASK).verdict is ALLOW
    assert decide([PermissionRules(ask=["t"])], "t", None, ALLOW).verdict is ASK


@pytest.mark.contract("D-29")
def test_a_child_cannot_allow_what_its_parent_asks_or_denies() -> None:
    allows = PermissionRules(allow=["t"])
    assert decide([PermissionRules(), allows], "t", None, ASK).verdict is ASK
    assert decide([PermissionRules(deny=["t"]), allows], "t", None, ALLOW).verdict is DENY
    assert decide([allows, PermissionRules(deny=["t"])], "t", None, ALLOW).verdict is DENY


def test_a_remembered_answer_lifts_ask_only_and_never_over_always() -> None:
    assert decide([], "t", None, ASK, remembered=True).verdict is ALLOW
    assert decide([], "t", None, DENY, remembered=True).verdict is DENY
    assert decide([], "t", None, ASK, ASK, remembered=True).verdict is ASK
    assert decide([], "t", None, ALLOW, DENY, remembered=True).verdict is DENY


def test_the_decision_says_which_rule_of_whom_decided() -> None:
    chain = [PermissionRules(allow=["*"]), PermissionRules(deny=["write(src/*)"])]
    decision = decide(chain, "write", "src/a", ASK, labels=["lead", "reviewer"])
    assert (decision.verdict, decision.rule, decision.level) == (DENY, "write(src/*)", 1)
    assert "`write(src/*)`" in decision.because
    assert "`reviewer`" in decision.because
    assert decide([], "write", None, ASK).because == "`write` needs a permission, and no rule says otherwise"
    assert "always asked" in decide(chain, "write", "x", ALLOW, ASK).because


@given(st.lists(rule_sets, min_size=1, max_size=3), rule_sets, tools, arguments, verdicts, verdicts, st.booleans())
def test_one_more_set_never_widens(
    chain: list[PermissionRules],
    more: PermissionRules,
    tool: str,
    argument: str | None,
    need: Verdict,
    always: Verdict,
    remembered: bool,
) -> None:
    before = decide(chain, tool, argument, need, always, remembered=remembered).verdict
    after = decide([*chain, more], tool, argument, need, always, remembered=remembered).verdict
    assert RANK[after] <= RANK[before]
    assert RANK[after] <= RANK[always]


@given(st.lists(rule_sets, max_size=4), tools, arguments, verdicts, st.booleans())
def test_a_deny_anywhere_wins(chain: list[PermissionRules], tool: str, argument: str | None, need: Verdict, yes: bool) -> None:
    if any(opinion(rules, tool, argument) is DENY for rules in chain):
        assert decide(chain, tool, argument, need, remembered=yes).verdict is DENY


@given(rule_sets, tools, arguments)
def test_the_order_inside_a_set_does_not_matter(rules: PermissionRules, tool: str, argument: str | None) -> None:
    turned = PermissionRules(allow=rules.allow[::-1], ask=rules.ask[::-1], deny=rules.deny[::-1])
    assert opinion(rules, tool, argument) is opinion(turned, tool, argument)


@given(st.lists(rule_sets, min_size=1, max_size=4), tools, arguments, verdicts)
def test_the_chain_is_the_smallest_of_its_parts(
    chain: list[PermissionRules], tool: str, argument: str | None, need: Verdict
) -> None:
    first = opinion(chain[0], tool, argument)
    expected = need if first is None else first
    for rules in chain[1:]:
        said = opinion(rules, tool, argument)
        expected = expected if said is None else stricter(expected, said)
    assert decide(chain, tool, argument, need).verdict is expected


def test_a_deny_or_ask_looks_at_every_place_and_an_allow_needs_them_all() -> None:
    notes, source = "notes/l/x", "src/x"
    assert opinion(PermissionRules(allow=["w"], deny=["w(src/*)"]), "w", notes, (notes, source)) is DENY
    assert opinion(PermissionRules(allow=["w"], deny=["w(SRC/*)"]), "w", "/ws/src/x", (source,)) is DENY
    assert opinion(PermissionRules(allow=["w"], ask=["w(src/*)"]), "w", notes, (notes, source)) is ASK
    assert opinion(PermissionRules(allow=["w(notes/*)"]), "w", notes, (notes, source)) is None
    assert opinion(PermissionRules(allow=["w(notes/*)"]), "w", notes, (notes,)) is ALLOW
    assert opinion(PermissionRules(allow=["w(notes/*)"]), "w", source, (notes,)) is None
    assert opinion(PermissionRules(deny=["w(.)"]), "w", None, (".",)) is DENY
    assert opinion(PermissionRules(allow=["w(*)"]), "w", None) is None
    assert decide([PermissionRules(), PermissionRules(deny=["w(src/*)"])], "w", notes, ALLOW, places=(source,)).verdict is DENY
