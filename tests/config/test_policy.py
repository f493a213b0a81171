"""Policy files: what they mean, and how they complain."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamguard.config.policy import MAX_DEPTH, load_policy, parse_policy
from streamguard.core.specs import AllOf, AnyOf, FailPolicy, Policy, Quorum, Rule
from streamguard.errors import ConfigError

A = '{signal = "mean_prob", below = 0.5, first = 8}'
B = '{signal = "min_prob", below = 0.1, first = 4}'
RULE_A, RULE_B = Rule("mean_prob", 0.5, 8), Rule("min_prob", 0.1, 4)


def test_a_whole_policy() -> None:
    """Every key there is, in one file."""
    text = """
        name = "answers"
        mode = "observe"
        release = "stream"
        on_abort = "error"
        finish_reason = "length"
        refused = "pass"
        dead = "any"
        sentinel_floor = -99
        fail = "closed"
        combine = "all"

        [[rules]]
        signal = "entropy_confidence"
        below = 0.25
        from = 2
        first = 6
        patience = 3
        tolerance = 0.01
        skip = ["blank", "special"]
        k = 8

        [[rules]]
        signal = "group_confidence"
        below = 3
        first = 20
        window = 16

        [[rules]]
        signal = "quantile_prob"
        below = 0.1
        first = 20
        quantile = 0.2
    """

    expected = Policy(
        name="answers",
        mode="observe",
        release="stream",
        on_abort="error",
        finish_reason="length",
        refused="pass",
        dead="any",
        sentinel_floor=-99,
        fail=FailPolicy.all("closed"),
        rule=AllOf(
            (
                Rule(
                    "entropy_confidence",
                    0.25,
                    6,
                    start=2,
                    patience=3,
                    tolerance=0.01,
                    skip=("blank", "special"),
                    k=8,
                ),
                Rule("group_confidence", 3, 20, window=16),
                Rule("quantile_prob", 0.1, 20, quantile=0.2),
            )
        ),
    )

    assert parse_policy(text) == expected


def test_an_empty_file_is_the_default_policy() -> None:
    """Nothing said, nothing changed."""
    assert parse_policy("") == Policy()


def test_fail_cause_by_cause() -> None:
    """A [fail] table closes what it names and leaves the rest open."""
    policy = parse_policy('[fail]\nno_signal = "closed"')

    assert policy.fail == FailPolicy(no_signal="closed")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"rules = [{A}]", RULE_A),
        (f'combine = "all"\nrules = [{A}]', RULE_A),
        (f"rules = [{A}, {B}]", AnyOf((RULE_A, RULE_B))),
        (f'combine = "any"\nrules = [{A}, {B}]', AnyOf((RULE_A, RULE_B))),
        (f'combine = "all"\nrules = [{A}, {B}]', AllOf((RULE_A, RULE_B))),
        (f"combine = {{at_least = 2}}\nrules = [{A}, {B}]", Quorum(2, (RULE_A, RULE_B))),
        (f"rules = [{A}, {{all = [{A}, {B}]}}]", AnyOf((RULE_A, AllOf((RULE_A, RULE_B))))),
        (f"rules = [{{at_least = 1, of = [{A}, {B}]}}]", Quorum(1, (RULE_A, RULE_B))),
        (
            f"rules = [{{any = [{{all = [{A}]}}, {B}]}}]",
            AnyOf((AllOf((RULE_A,)), RULE_B)),
        ),
    ],
)
def test_combinations(text: str, rule: object) -> None:
    """`combine` says how the top level decides; groups stand where rules stand."""
    assert parse_policy(text).rule == rule


@pytest.mark.parametrize(
    ("text", "field", "mend"),
    [
        ("mdoe = 'off'", "mdoe", "did you mean 'mode'?"),
        ("zzz = 1", "zzz", "use one of name, mode"),
        ("[policy]\nmode = 'off'", "policy", "use one of name, mode"),
        ("mode = 'enforced'", "mode", "did you mean 'enforce'?"),
        ("mode = 1", "mode", "use one of off, observe, enforce"),
        ("sentinel_floor = -9999", "sentinel_floor", "from -9000 to -1"),
        ("fail = 'shut'", "fail", "use one of open, closed"),
        ("fail = 1", "fail", "use one of open, closed"),
        ("fail = {no_signl = 'open'}", "fail.no_signl", "did you mean 'no_signal'?"),
        ("fail = {no_signal = 'opn'}", "fail.no_signal", "did you mean 'open'?"),
        ("combine = 'any'", "combine", "add [[rules]]"),
        (f"combine = 'most'\nrules = [{A}]", "combine", "any, all"),
        (f"combine = {{}}\nrules = [{A}]", "combine", "{at_least = 2}"),
        (f"combine = {{atleast = 1}}\nrules = [{A}]", "combine.atleast", "did you mean 'at_least'"),
        (f"combine = {{at_least = 2}}\nrules = [{A}]", "combine.at_least", "from 1 to 1"),
        ("rules = []", "rules", "at least one [[rules]]"),
        ("rules = 'mean_prob'", "rules", "at least one [[rules]]"),
        ("[rules]\nsignal = 'mean_prob'", "rules", "at least one [[rules]]"),
        ("rules = [1]", "rules[0]", "write {signal"),
        ("rules = [{signal = 'mean_prob', below = 0.5}]", "rules[0].first", "signal, below"),
        (f"rules = [{A}, {{singal = 'x'}}]", "rules[1].singal", "did you mean 'signal'?"),
        (f"rules = [{A[:-1]}, start = 1}}]", "rules[0].start", "use one of signal"),
        (f"rules = [{A[:-1]}, from = 9}}]", "rules[0].from", "from 1 to 8"),
        (f"rules = [{A[:-1]}, skip = ['blanc']}}]", "rules[0].skip", "did you mean 'blank'?"),
        (f"rules = [{{all = [{A}], any = [{B}]}}]", "rules[0]", "write {any = [...]}"),
        (f"rules = [{{all = [{A}], below = 1}}]", "rules[0]", "write {any = [...]}"),
        (f"rules = [{{at_least = 2, of = [{A}]}}]", "rules[0].at_least", "from 1 to 1"),
        (f"rules = [{{at_least = 2, any = [{A}]}}]", "rules[0]", "{at_least = 2, of"),
        ("rules = [{any = []}]", "rules[0].any", "at least one"),
        (
            f"rules = [{{any = [{B}, {{all = [{{signal = 'men_prob', below = 0, first = 1}}]}}]}}]",
            "rules[0].any[1].all[0].signal",
            "did you mean 'mean_prob'?",
        ),
    ],
)
def test_complaints_name_file_key_path_and_mend(text: str, field: str, mend: str) -> None:
    """What is wrong, where, and what may stand there."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, name="p.toml")

    assert caught.value.field == f"p.toml: {field}"
    assert mend in caught.value.mend


def test_nesting_ends_somewhere() -> None:
    """Too many levels are a complaint, never a recursion error."""

    def nested(levels: int) -> str:
        return "rules = [" + "{any = [" * levels + A + "]}" * levels + "]"

    parse_policy(nested(MAX_DEPTH - 1))
    for levels in (MAX_DEPTH, 50_000):
        with pytest.raises(ConfigError, match="nested too deeply"):
            parse_policy(nested(levels))


def test_invalid_toml_names_the_line() -> None:
    """A syntax error says where."""
    with pytest.raises(ConfigError, match=r"^p\.toml: is not valid TOML: .*line 2"):
        parse_policy("name = 'a'\nmode = x", name="p.toml")


def test_a_file_is_read(tmp_path: Path) -> None:
    """`load_policy` reads UTF-8 TOML."""
    path = tmp_path / "policy.toml"
    path.write_text(f"# \u00fc\nrules = [{A}]", encoding="utf-8")

    assert load_policy(path).rule == RULE_A


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, a directory, or no UTF-8: the path and the reason."""
    broken = tmp_path / "latin.toml"
    broken.write_bytes(b"name = '\xfc'")

    for path, reason in (
        (tmp_path / "absent.toml", "No such file"),
        (tmp_path, "Is a directory"),
        (broken, "is not UTF-8"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_policy(path)

        assert str(path) in str(caught.value)
        assert reason in caught.value.problem
