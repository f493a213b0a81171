"""Rules: where they look, when they fire, how they combine, what they refuse to be."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamguard.core.events import Alternative, Entry
from streamguard.core.rules import (
    AllOf,
    AnyOf,
    Decision,
    Evaluation,
    FailPolicy,
    Policy,
    Quorum,
    Rule,
    Spec,
)
from streamguard.core.signals import QUANTILE_ENTRIES, SIGNALS
from streamguard.core.skips import is_blank, is_special
from streamguard.errors import ConfigError

LOW, HIGH = math.log(0.1), math.log(0.9)
PLAIN = ("first_prob", "mean_prob", "min_prob", "quantile_prob", "window_prob")


def follow(spec: Spec | None, logs: list[float], **more: Any) -> tuple[Decision | None, Evaluation]:
    """Push everything, then end; the decision, wherever it fell."""
    evaluation = Evaluation(spec, **more)
    decisions = [evaluation.push(Entry("t", log), i) for i, log in enumerate(logs, 1)]
    decisions.append(evaluation.end(len(logs)))
    made = [decision for decision in decisions if decision is not None]
    assert len(made) <= 1
    return (made[0] if made else None), evaluation


def told(spec: Spec | None, logs: list[float]) -> tuple[str, int] | None:
    decision, _ = follow(spec, logs)
    return None if decision is None else (decision.kind, decision.position)


# --------------------------------------------------------------------------- where a rule looks


def test_first_alone_is_one_look() -> None:
    """`first` N looks at the N-th entry and nowhere else."""
    rule = Rule("mean_prob", 0.5, 3)

    assert told(rule, [LOW, LOW, 0.0]) == ("abort", 3)
    assert told(rule, [LOW, 0.0, 0.0, LOW, LOW]) == ("abort", 3)
    assert told(rule, [HIGH, HIGH, HIGH, LOW]) == ("commit", 3)


def test_from_looks_at_each() -> None:
    """`start` M looks at each of M..N, and aborts at the first low one."""
    rule = Rule("min_prob", 0.5, 4, start=2)

    assert told(rule, [HIGH, HIGH, LOW, HIGH]) == ("abort", 3)
    assert told(rule, [LOW, HIGH, HIGH, HIGH]) == ("abort", 2)
    assert told(rule, [HIGH, HIGH, HIGH, HIGH, LOW]) == ("commit", 4)


def test_an_answer_that_ends_sooner_has_one_look_at_its_end() -> None:
    """Fewer entries than M: the end is the place."""
    assert told(Rule("mean_prob", 0.5, 9, start=5), [LOW, LOW]) == ("abort", 2)
    assert told(Rule("mean_prob", 0.5, 9, start=5), [HIGH, HIGH]) == ("commit", 2)


def test_an_answer_that_ends_between_the_looks_passes() -> None:
    """Between M and N every entry had its look already: no abort means commit."""
    assert told(Rule("mean_prob", 0.5, 9, start=2), [HIGH, HIGH, HIGH]) == ("commit", 3)
    # No entry is looked at twice: two low looks are not three.
    assert told(Rule("mean_prob", 0.5, 9, start=1, patience=3), [LOW, LOW]) == ("commit", 2)


def test_no_entries_are_no_evidence() -> None:
    """A choice without a scorable entry is neither aborted nor committed."""
    assert told(Rule("mean_prob", 0.5, 2), []) is None


def test_patience_counts_low_looks_in_a_row() -> None:
    """A look that is not low starts the count again."""

    def step(p: float) -> Entry:
        return Entry("t", math.log(p), None, [Alternative("o", math.log(0.5))])

    evaluation = Evaluation(Rule("margin", 0.1, 6, start=1, patience=2, tolerance=0.0))
    # means of p - 0.5: -0.2, 0.1, 0.0333, 0.0
    told_at = [evaluation.push(step(p), i) for i, p in enumerate([0.3, 0.9, 0.4, 0.4], 1)]

    assert [decision and decision.kind for decision in told_at] == [None, None, None, "abort"]


def test_patience_is_not_met_by_the_one_look_at_the_end() -> None:
    """One look is one low look at most."""
    rule = Rule("mean_prob", 0.5, 9, start=5, patience=2)

    assert told(rule, [LOW, LOW]) == ("commit", 2)


def test_tolerance_is_taken_off_the_bound() -> None:
    """Low means below - tolerance, so that rounding on the way does not cut."""
    logs = [math.log(0.4995)]

    assert told(Rule("first_prob", 0.5, 1), logs) == ("commit", 1)
    assert told(Rule("first_prob", 0.5, 1, tolerance=0.0), logs) == ("abort", 1)
    assert told(Rule("first_prob", 0.5, 1), [math.log(0.4985)]) == ("abort", 1)


def test_a_value_on_the_bound_is_not_low() -> None:
    """Below is strict."""
    assert told(Rule("first_prob", 1.0, 1, tolerance=0.0), [0.0]) == ("commit", 1)


def test_position_is_the_callers() -> None:
    """The decision carries the position of the deciding entry, unscorable ones counted."""
    evaluation = Evaluation(Rule("mean_prob", 0.5, 2))
    evaluation.push(Entry("t", LOW), 4)

    decision = evaluation.push(Entry("t", LOW), 9)

    assert decision is not None
    assert (decision.kind, decision.signal, decision.threshold) == ("abort", "mean_prob", 0.5)
    assert decision.score == pytest.approx(0.1)
    assert decision.position == 9


def test_a_decision_falls_once() -> None:
    """After it, signals go on, and nothing is decided any more, not even at the end."""
    evaluation = Evaluation(Rule("mean_prob", 0.5, 1))
    assert evaluation.push(Entry("t", LOW), 1) is not None

    assert evaluation.push(Entry("t", LOW), 2) is None
    assert evaluation.end(2) is None
    assert evaluation.push(Entry("t", 0.0), 3) is None
    assert evaluation.signals()["mean_prob"] == pytest.approx(math.exp(2 * LOW / 3))


def test_the_end_comes_once() -> None:
    """A second end, or an entry after it, decides nothing."""
    evaluation = Evaluation(Rule("mean_prob", 0.5, 3))
    assert evaluation.end(0) is None

    assert evaluation.push(Entry("t", LOW), 1) is None
    assert evaluation.end(1) is None


def test_an_unavailable_signal_decides_nothing() -> None:
    """No alternatives, no margin: the rule settles without evidence."""
    assert told(Rule("margin", 0.5, 2), [LOW, LOW, LOW]) is None


def test_what_a_signal_raises_comes_out() -> None:
    """Containing it is the caller's business, who knows what fail policy holds."""
    with pytest.raises(ValueError, match="scorable"):
        Evaluation(Rule("mean_prob", 0.5, 2)).push(Entry("t", None), 1)


# --------------------------------------------------------------------------- scope


def test_skipped_entries_neither_count_nor_average() -> None:
    """A blank at 0.0 does not lift the mean and does not move the place of the look."""
    rule = Rule("mean_prob", 0.5, 2, skip=("blank",))
    tokens = [("\n", 0.0), ("a", LOW), (" ", 0.0), ("b", LOW)]
    evaluation = Evaluation(rule)

    told_at = [evaluation.push(Entry(t, log), i) for i, (t, log) in enumerate(tokens, 1)]

    assert [decision and decision.kind for decision in told_at] == [None, None, None, "abort"]
    assert evaluation.signals() == {"mean_prob": pytest.approx(0.1)}


def test_rules_with_other_skips_count_by_themselves() -> None:
    """Each scope has its own count; the second of one name is told apart in the report."""
    spec = AnyOf((Rule("mean_prob", 0.5, 9), Rule("mean_prob", 0.5, 9, skip=("special",))))
    evaluation = Evaluation(spec)
    evaluation.push(Entry("<|im_start|>", LOW), 1)
    evaluation.push(Entry("a", HIGH), 2)

    values = evaluation.signals()

    assert values == {"mean_prob": pytest.approx(0.3), "mean_prob#2": pytest.approx(0.9)}


def test_rules_on_the_same_signal_share_it() -> None:
    """Two bounds on one signal are one value in the report."""
    spec = AnyOf((Rule("mean_prob", 0.5, 2), Rule("mean_prob", 0.7, 5)))

    assert list(Evaluation(spec).signals()) == ["mean_prob"]


@pytest.mark.parametrize(
    ("token", "octets", "blank"),
    [
        ("", None, True),
        (" \n\t", None, True),
        ("\u00a0", [0xC2, 0xA0], True),
        ("", [], True),
        ("", [32], True),
        ("", [0xE2, 0x96], False),
        ("", [65], False),
        ("", [999], False),
        ("a", None, False),
        (" a", [32, 97], False),
        (None, None, False),
        (None, [10], True),
    ],
)
def test_blanks(token: str | None, octets: list[int] | None, blank: bool) -> None:
    """Blank is empty or white space in string and bytes: half a character is none."""
    assert is_blank(Entry(token, 0.0, octets)) is blank


@pytest.mark.parametrize(
    ("token", "special"),
    [
        ("<|im_end|>", True),
        (" <|eot_id|>", True),
        ("<|reserved_special_token_17|>", True),
        ("<\uff5cend\u2581of\u2581sentence\uff5c>", True),
        ("<s>", True),
        ("</s>", True),
        ("<eos>", True),
        ("<bos>", True),
        ("<pad>", True),
        ("<unk>", True),
        ("<start_of_turn>", True),
        ("<end_of_turn>", True),
        ("[INST]", True),
        ("[/INST]", True),
        ("<", False),
        ("<b>", False),
        ("<||>", False),
        ("a<|im_end|>", False),
        ("[1]", False),
        ("", False),
        (None, False),
        ("<|" + "a" * 1_000_000, False),
    ],
)
def test_special_tokens(token: str | None, special: bool) -> None:
    """Known spellings of control tokens, whole tokens only; text is text."""
    assert is_special(Entry(token, 0.0)) is special


# --------------------------------------------------------------------------- groups

PASS1, PASS3 = Rule("first_prob", 0.05, 1), Rule("first_prob", 0.05, 3)
FIRE1, FIRE3 = Rule("first_prob", 0.5, 1), Rule("first_prob", 0.5, 3)
NONE2 = Rule("margin", 0.5, 2)
TOKENS = [LOW] * 4


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (AnyOf((PASS1, FIRE3)), ("abort", 3)),
        (AnyOf((FIRE1, PASS3)), ("abort", 1)),
        (AnyOf((PASS1, PASS3)), ("commit", 3)),
        (AnyOf((PASS1, NONE2)), ("commit", 2)),
        (AnyOf((NONE2, NONE2)), None),
        (AllOf((FIRE1, FIRE3)), ("abort", 3)),
        (AllOf((FIRE3, PASS1)), ("commit", 1)),
        (AllOf((FIRE1, NONE2)), ("commit", 2)),
        (AllOf((NONE2, FIRE3)), ("commit", 3)),
        (AllOf((NONE2, NONE2)), None),
        (Quorum(2, (FIRE1, PASS1, FIRE3)), ("abort", 3)),
        (Quorum(2, (FIRE3, PASS1, PASS1)), ("commit", 1)),
        (Quorum(2, (FIRE1, PASS3, PASS3)), ("commit", 3)),
        (Quorum(1, (PASS1, FIRE3)), ("abort", 3)),
        (AnyOf((AllOf((FIRE1, PASS3)), FIRE3)), ("abort", 3)),
        (AllOf((AnyOf((PASS1, FIRE3)), FIRE1)), ("abort", 3)),
        (AllOf((AnyOf((NONE2, NONE2)), FIRE1)), ("commit", 2)),
        (AnyOf((AllOf((NONE2, NONE2)), NONE2)), None),
    ],
)
def test_groups(spec: Spec, expected: tuple[str, int] | None) -> None:
    """A group decides as soon as it is sure, and not before; a fired rule stays fired."""
    assert told(spec, TOKENS) == expected


@pytest.mark.parametrize(
    ("spec", "threshold"),
    [
        (AnyOf((PASS3, Rule("first_prob", 0.6, 2), FIRE3)), 0.6),
        (AllOf((Rule("first_prob", 0.6, 2), FIRE1)), 0.6),
        (Quorum(2, (FIRE3, Rule("first_prob", 0.6, 2), FIRE1)), 0.6),
        (AnyOf((AllOf((FIRE1, PASS3)), Rule("first_prob", 0.6, 3))), 0.6),
        (AnyOf((PASS3, Rule("first_prob", 0.06, 4), PASS1)), 0.06),
        (AllOf((Rule("first_prob", 0.06, 1), FIRE3)), 0.06),
    ],
)
def test_the_decision_names_the_rule_that_made_it(spec: Spec, threshold: float) -> None:
    """The last rule needed to fire; for a commit the one that passed last."""
    decision, _ = follow(spec, TOKENS)

    assert decision is not None
    assert decision.threshold == threshold


# --------------------------------------------------------------------------- what is reported


def test_without_a_rule_nothing_is_decided() -> None:
    """`also` alone feeds signals over all entries."""
    decision, evaluation = follow(None, [LOW] * 9, also=SIGNALS)

    assert decision is None
    assert list(evaluation.signals()) == list(SIGNALS)
    assert evaluation.signals()["mean_prob"] == pytest.approx(0.1)


def test_further_signals_follow_the_first_rules_scope() -> None:
    """`also` is computed with the skips of the first rule, and not twice."""
    evaluation = Evaluation(Rule("mean_prob", 0.5, 9, skip=("blank",)), also=SIGNALS)
    evaluation.push(Entry(" ", LOW), 1)
    evaluation.push(Entry("a", HIGH), 2)

    values = evaluation.signals()

    assert sorted(values) == sorted(SIGNALS)
    assert values["min_prob"] == values["mean_prob"] == pytest.approx(0.9)


def test_a_rule_without_k_uses_five() -> None:
    """However many a client asked for: the scale of a group figure depends on k."""
    top = [Alternative(str(i), -0.5 - i) for i in range(20)]
    one = Entry("0", -0.5, None, top)
    ruled = Evaluation(Rule("group_confidence", 1.0, 9), asked=20)
    free = Evaluation(None, asked=20, also=["group_confidence"])
    for evaluation in (ruled, free):
        evaluation.push(one, 1)

    assert ruled.signals() == {"group_confidence": pytest.approx(2.5)}
    assert free.signals() == {"group_confidence": pytest.approx(10.0)}


@pytest.mark.parametrize("also", [(), ("group_confidence",)])
def test_the_sentinel_floor_reaches_the_signals(also: tuple[str, ...]) -> None:
    """A provider's own floor holds for the alternatives of rules and of further signals."""
    spec = None if also else Rule("group_confidence", 1.0, 9)
    evaluation = Evaluation(spec, also=also, floor=-99.0)
    evaluation.push(Entry("t", -1.0, None, [Alternative("t", -1.0), Alternative("x", -100.0)]), 1)

    assert evaluation.signals() == {"group_confidence": 1.0}


# --------------------------------------------------------------------------- monotone

bounds = st.sampled_from([0.05, 0.2, 0.5, 0.8, 0.99])


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    signal = draw(st.sampled_from(PLAIN))
    window = draw(st.integers(1, 3)) if signal == "window_prob" else 8
    first = draw(st.integers(window if signal == "window_prob" else 1, 8))
    start = draw(st.none() | st.integers(1, first))
    looks = first - (start or first) + 1
    return Rule(
        signal,
        draw(bounds),
        first,
        start=start,
        patience=draw(st.integers(1, looks)),
        tolerance=draw(st.sampled_from([0.0, 0.001])),
        skip=tuple(draw(st.sets(st.sampled_from(["blank", "special"])))),
        window=window,
    )


def grouped(children: st.SearchStrategy[Spec]) -> st.SearchStrategy[Spec]:
    members = st.lists(children, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        members.map(AnyOf),
        members.map(AllOf),
        st.tuples(st.integers(1, 3), members).map(lambda t: Quorum(min(t[0], len(t[1])), t[1])),
    )


specs = st.recursive(rules(), grouped, max_leaves=5)
tokens = st.lists(
    st.tuples(st.sampled_from(["a", "b", " ", "<s>"]), st.floats(-6.0, 0.0)), max_size=10
)


@given(spec=specs, row=tokens, at=st.integers(0, 9), less=st.floats(0.0, 8.0))
@settings(max_examples=200)
def test_lowering_one_logprob_never_turns_an_abort_into_a_pass(
    spec: Spec, row: list[tuple[str, float]], at: int, less: float
) -> None:
    """For any tree of plain rules: once an abort, always one, and never later."""

    def decide(row: list[tuple[str, float]]) -> Decision | None:
        evaluation = Evaluation(spec)
        made = [evaluation.push(Entry(t, log), i) for i, (t, log) in enumerate(row, 1)]
        made.append(evaluation.end(len(row)))
        return next((decision for decision in made if decision), None)

    before = decide(row)
    lowered = [(t, log - less) if i == at else (t, log) for i, (t, log) in enumerate(row)]
    after = decide(lowered)

    assert (before is None) == (after is None)
    if before is not None and after is not None and before.kind == "abort":
        assert after.kind == "abort"
        assert after.position <= before.position


@given(spec=specs, row=tokens)
@settings(max_examples=100)
def test_with_evidence_everything_is_decided(spec: Spec, row: list[tuple[str, float]]) -> None:
    """A rule that saw its signal leads to a decision by the end, with a finite score."""
    evaluation = Evaluation(spec)
    made = [evaluation.push(Entry(t, log), i) for i, (t, log) in enumerate(row, 1)]
    made.append(evaluation.end(len(row)))
    decided = [decision for decision in made if decision is not None]

    assert len(decided) <= 1
    if any(v is not None for v in evaluation.signals().values()):
        assert len(decided) == 1
        assert math.isfinite(decided[0].score)


# --------------------------------------------------------------------------- refused specs

GOOD: dict[str, Any] = {"signal": "mean_prob", "below": 0.5, "first": 5}


@pytest.mark.parametrize(
    ("field", "changes", "mend"),
    [
        ("signal", {"signal": "men_prob"}, "did you mean 'mean_prob'"),
        ("signal", {"signal": "luck"}, "use one of first_prob"),
        ("signal", {"signal": None}, "use one of first_prob"),
        ("below", {"below": 50}, "between 0 and 1"),
        ("below", {"below": -0.1}, "between 0 and 1"),
        ("below", {"below": math.nan}, "between 0 and 1"),
        ("below", {"below": math.inf}, "between 0 and 1"),
        ("below", {"below": "0.5"}, "between 0 and 1"),
        ("below", {"below": True}, "between 0 and 1"),
        ("below", {"signal": "margin", "below": -1.5}, "between -1 and 1"),
        ("below", {"signal": "group_confidence", "below": -1.0}, "from 0 up"),
        ("first", {"first": 0}, "from 1"),
        ("first", {"first": 2.5}, "from 1"),
        ("first", {"first": True}, "from 1"),
        ("start", {"start": 0}, "from 1"),
        ("start", {"start": 6}, "from 1 to 5"),
        ("patience", {"patience": 0}, "from 1"),
        ("patience", {"patience": 2}, "at most 1"),
        ("patience", {"start": 3, "patience": 4}, "at most 3"),
        ("tolerance", {"tolerance": -0.1}, "from 0 up"),
        ("tolerance", {"tolerance": math.nan}, "from 0 up"),
        ("skip", {"skip": ("blnk",)}, "did you mean 'blank'"),
        ("skip", {"skip": "blank"}, '["blank", "special"]'),
        ("window", {"window": 4}, "leave it out"),
        ("window", {"signal": "window_prob", "window": 0}, "from 1"),
        ("first", {"signal": "window_prob"}, "at least 8"),
        ("first", {"signal": "quantile_prob", "first": QUANTILE_ENTRIES + 1}, "at most"),
        ("quantile", {"signal": "quantile_prob", "quantile": 1.0}, "between 0 and 1"),
        ("quantile", {"signal": "quantile_prob", "quantile": 0}, "between 0 and 1"),
        ("quantile", {"quantile": 0.5}, "leave it out"),
        ("k", {"k": 5}, "leave it out"),
        ("k", {"signal": "entropy_confidence", "k": 1}, "from 2"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(
    field: str, changes: dict[str, Any], mend: str
) -> None:
    """The complaint names the field and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        Rule(**(GOOD | changes))

    assert caught.value.field == field
    assert mend in caught.value.mend
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("make", [AnyOf, AllOf, lambda rules: Quorum(1, rules)])
@pytest.mark.parametrize("bad", [(), [1], None, "ab"])
def test_a_group_holds_rules(make: Any, bad: object) -> None:
    """A group without rules, or with something else in it, is refused."""
    with pytest.raises(ConfigError, match=r"^rules: "):
        make(bad)


@pytest.mark.parametrize("at_least", [0, 3, True, 1.5])
def test_a_quorum_can_be_met(at_least: Any) -> None:
    """`at_least` lies between 1 and the number of rules."""
    with pytest.raises(ConfigError, match=r"^at_least: .* from 1 to 2"):
        Quorum(at_least, (FIRE1, FIRE3))


def test_specs_are_values() -> None:
    """Lists become tuples and skips are a set: equal specs are equal and can be keys."""
    one = AnyOf([Rule("mean_prob", 0.5, 5, skip=["special", "blank", "blank"])])  # type: ignore[arg-type]
    two = AnyOf((Rule("mean_prob", 0.5, 5, skip=("blank", "special")),))

    assert len({one, two}) == 1


# --------------------------------------------------------------------------- policy


def test_alternatives_are_the_most_that_a_rule_needs() -> None:
    """Over all leaves; none without a rule, none for the plain signals."""
    deep = AllOf((FIRE1, AnyOf((NONE2, Rule("entropy_confidence", 0.5, 3, k=7)))))

    assert Policy().alternatives == 0
    assert Policy(rule=FIRE1).alternatives == 0
    assert Policy(rule=NONE2).alternatives == 2
    assert Policy(rule=deep).alternatives == 7
    assert Policy(rule=Rule("group_confidence", 1, 3)).alternatives == 5


def test_last_look_is_the_latest() -> None:
    """By this count every rule of a tree has settled."""
    assert AnyOf((FIRE1, Quorum(1, (FIRE3, NONE2)))).last_look == 3


def test_fail_all_sets_every_cause() -> None:
    """`FailPolicy.all` leaves no cause out."""
    closed = FailPolicy.all("closed")

    assert {getattr(closed, cause) for cause in FailPolicy.__struct_fields__} == {"closed"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a b"),
        ("name", "a\r\nb"),
        ("name", "x" * 65),
        ("mode", "enforced"),
        ("release", "hold"),
        ("on_abort", "drop"),
        ("finish_reason", "tool_calls"),
        ("refused", "no"),
        ("dead", "some"),
        ("fail", "closed"),
        ("rule", "mean_prob"),
        ("sentinel_floor", -9999.0),
        ("sentinel_floor", 0.0),
        ("sentinel_floor", math.nan),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(field: str, value: Any) -> None:
    """Each field has its closed list or range."""
    with pytest.raises(ConfigError, match=f"^{field}: "):
        Policy(**{field: value})


def test_a_fail_cause_is_open_or_closed() -> None:
    """Nothing in between."""
    with pytest.raises(ConfigError, match=r"^oversize: 'close' .* did you mean 'closed'"):
        FailPolicy(oversize="close")  # type: ignore[arg-type]
