"""Watch: which entries count, one verdict per choice, and how ends and failures are told."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from tests.reference.build import E, L

from streamguard.core import rules
from streamguard.core.dialects import Reader
from streamguard.core.events import Alternative, ChoiceDelta, ChoiceReport, Chunk, Entry, Verdict
from streamguard.core.rules import Decision, Evaluation
from streamguard.core.specs import AnyOf, FailPolicy, Policy, Rule
from streamguard.core.watch import MAX_BARE_ZEROS, MAX_CHOICES, MAX_FINISH_REASON, Watch

LOW, HIGH = -3.0, -0.1
FIRST = Policy(rule=Rule("first_prob", 0.5, 1))
MEAN3 = Policy(rule=Rule("mean_prob", 0.5, 3))


def watch(policy: Policy | None = None, *, asked: int | None = 1, choices: int | None = 1) -> Watch:
    return Watch(policy or Policy(), asked=asked, choices=choices)


def entry(logprob: float | None, *, listed: bool = True) -> Entry:
    return Entry("a", logprob, None, [Alternative("a", logprob)] if listed else None)


def delta(
    *logs: float | None, i: int = 0, fin: str | None = None, listed: bool = True, text: bool = False
) -> ChoiceDelta:
    return ChoiceDelta(i, tuple(entry(log, listed=listed) for log in logs), fin, text)


def see(found: Watch, *deltas: ChoiceDelta) -> list[Verdict]:
    return found.see(Chunk(deltas))


def settled(found: Watch) -> bool:
    return found.settled


def report(found: Watch) -> ChoiceReport:
    (choice,) = found.reports()
    return choice


# --------------------------------------------------------------------------- what counts


def test_counts() -> None:
    """Every entry is counted; mean and minimum are over the scorable ones."""
    found = watch()
    see(found, delta(-1.0, None, -2.0), delta(-9999.0, -3.0))

    seen = report(found)
    assert (seen.entries, seen.scorable, seen.unscorable) == (5, 3, 2)
    assert (seen.mean_logprob, seen.min_logprob) == (-2.0, -3.0)
    assert found.entries == 5


@pytest.mark.parametrize(
    ("logprob", "counts"),
    [
        (-0.0, True),
        (0.0, True),
        (1e-6, True),
        (1.1e-6, False),
        (0.5, False),
        (-8999.9, True),
        (-9000.0, False),
        (-9999.0, False),
        (-3.4028234663852886e38, False),
        (-math.inf, False),
        (math.inf, False),
        (math.nan, False),
        (None, False),
        (-5e-324, True),
    ],
)
def test_what_is_scorable(logprob: float | None, counts: bool) -> None:
    """A finite number up to a rounding error above 0, and above the sentinel floor."""
    found = watch(FIRST)
    verdicts = see(found, delta(logprob))
    assert report(found).scorable == counts
    assert bool(verdicts) is counts


def test_the_floor_is_the_policys() -> None:
    """Where -100 is the sentinel, -99 is the floor."""
    found = watch(Policy(sentinel_floor=-99.0))
    see(found, delta(-100.0, -99.0, -98.9))
    assert report(found).scorable == 1


@pytest.mark.parametrize("sentinel", [None, -9999.0, 0.7, math.nan, -3.4028234663852886e38])
def test_a_sentinel_can_not_disarm_the_guard(sentinel: float | None) -> None:
    """It neither lowers nor lifts a mean, and does not use up a look."""
    found = watch(MEAN3)
    assert see(found, delta(sentinel, LOW, sentinel, LOW, sentinel)) == []
    (verdict,) = see(found, delta(LOW))
    assert (verdict.kind, verdict.position) == ("abort", 6)
    assert verdict.score == pytest.approx(math.exp(LOW))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "x", True, None, -9999.0, 1.0])
def test_nor_can_one_that_comes_over_the_wire(value: Any) -> None:
    """From bytes to verdict: whatever stands there, the next real entry decides."""
    listed = L(E("a", value), {"token": "b"}, E("c", LOW, 1))
    data = json.dumps({"choices": [{"index": 0, "logprobs": listed}]}).encode()
    reading = Reader().read(data)
    assert reading.chunk is not None
    (verdict,) = watch(FIRST).see(reading.chunk)
    assert (verdict.kind, verdict.position) == ("abort", 3)


# --------------------------------------------------------------------------- bare zeros


def test_a_bare_zero_where_alternatives_were_asked_for() -> None:
    """A placeholder: missing, not certain."""
    for asked in (1, 5):
        found = watch(FIRST, asked=asked)
        assert see(found, delta(0.0, -0.0, listed=False)) == []
        assert report(found).scorable == 0
        assert see(found, delta(LOW))[0].kind == "abort"


def test_a_listed_zero_is_certain() -> None:
    """A sure token with its alternative."""
    found = watch(FIRST)
    assert see(found, delta(0.0))[0].kind == "commit"


def test_an_empty_list_is_no_list() -> None:
    """As good as a missing one."""
    found = watch(FIRST)
    assert see(found, ChoiceDelta(0, (Entry("a", 0.0, None, []),))) == []


def test_a_bare_zero_where_none_were_asked_for() -> None:
    """Then no list can be expected, and 0.0 is a sure token."""
    found = watch(FIRST, asked=0)
    assert see(found, delta(0.0, listed=False))[0].kind == "commit"


def test_bare_zeros_where_nobody_knows() -> None:
    """They wait, and count at their own places once a credible entry came."""
    found = watch(MEAN3, asked=None)
    assert see(found, delta(0.0, 0.0, listed=False)) == []
    assert report(found).scorable == 0
    (verdict,) = see(found, delta(LOW, listed=False))
    assert (verdict.position, report(found).scorable) == (3, 3)
    assert verdict.score == pytest.approx(math.exp(LOW / 3))
    see(found, delta(0.0, listed=False))
    assert report(found).scorable == 4


def test_a_held_zero_may_decide_at_its_own_place() -> None:
    """The verdict's position is that of the entry that decided, not of the one that freed it."""
    found = watch(FIRST, asked=None)
    (verdict,) = see(found, delta(0.0, LOW, listed=False))
    assert (verdict.kind, verdict.position) == ("commit", 1)


def test_a_stream_of_bare_zeros_stays_unscored() -> None:
    """A server's word for unknown, repeated, is no evidence."""
    found = watch(MEAN3, asked=None)
    see(found, delta(*[0.0] * 9, fin="stop", listed=False))
    seen = report(found)
    assert (seen.entries, seen.scorable, seen.verdict, seen.reason) == (9, 0, None, "no_signal")


def test_the_choices_do_not_vouch_for_each_other() -> None:
    """Each choice by itself."""
    found = watch(asked=None, choices=2)
    see(found, delta(0.0, i=0, listed=False), delta(LOW, i=1))
    assert [choice.scorable for choice in found.reports()] == [0, 1]


# --------------------------------------------------------------------------- verdicts


def test_one_verdict_per_choice_ever() -> None:
    """After it entries are counted and nothing is decided."""
    found = watch(FIRST, choices=2)
    assert [v.index for v in see(found, delta(LOW, i=1))] == [1]
    assert see(found, delta(LOW, i=1), delta(LOW, i=1, fin="stop")) == []
    assert [v.index for v in see(found, delta(HIGH, i=0), delta(LOW, i=0))] == [0]
    assert found.end() == []
    assert [choice.verdict for choice in found.reports()] == ["commit", "abort"]


def test_what_a_verdict_says() -> None:
    """The look that decided, for an abort and for a commit."""
    (abort,) = see(watch(FIRST), delta(None, LOW))
    assert abort == Verdict(0, "abort", 2, "unsure", "first_prob", math.exp(LOW), 0.5)
    (commit,) = see(watch(FIRST), delta(HIGH))
    assert commit == Verdict(0, "commit", 1, None, "first_prob", math.exp(HIGH), 0.5)


def test_several_choices_in_one_event() -> None:
    """In the order of the event; one that speaks twice is judged once."""
    verdicts = see(watch(FIRST, choices=3), delta(LOW, i=2), delta(HIGH), delta(LOW, i=2))
    assert [(v.index, v.kind) for v in verdicts] == [(2, "abort"), (0, "commit")]


def test_entries_are_read_before_the_finish() -> None:
    """The last token's entry may ride on the finish."""
    (verdict,) = see(watch(FIRST), delta(LOW, fin="stop"))
    assert (verdict.kind, verdict.position) == ("abort", 1)


def test_a_short_answer_is_looked_at_once_at_its_end() -> None:
    """At its finish, or where the stream ends without one."""
    found = watch(MEAN3)
    assert see(found, delta(LOW)) == []
    (verdict,) = see(found, delta(fin="stop"))
    assert (verdict.kind, verdict.position) == ("abort", 1)
    other = watch(MEAN3)
    see(other, delta(HIGH))
    assert [v.kind for v in other.end()] == ["commit"]
    assert other.end() == []


def test_the_first_finish_counts() -> None:
    """A second one changes nothing; nonsense of any length is cut."""
    found = watch()
    see(found, delta(fin="stop"))
    see(found, delta(fin="length"))
    assert (report(found).finish_reason, found.finished) == ("stop", frozenset({0}))
    other = watch()
    see(other, delta(fin="x" * 1000))
    other.note(1, "y" * 1000)
    assert [c.finish_reason for c in other.reports()] == [
        "x" * MAX_FINISH_REASON,
        "y" * MAX_FINISH_REASON,
    ]


def test_no_evidence_is_no_verdict() -> None:
    """Never an abort, never a commit: its own reason in the record."""
    found = watch(MEAN3)
    assert see(found, delta(None, fin="stop")) == []
    assert found.end() == []
    assert (report(found).verdict, report(found).reason) == (None, "no_signal")


def test_without_a_rule() -> None:
    """Counted, not judged; the reason stays empty."""
    found = watch()
    assert see(found, delta(LOW, fin="stop")) == []
    assert (report(found).verdict, report(found).reason, report(found).signals) == (None, None, {})


def test_further_signals_for_the_report() -> None:
    """Computed with or without a rule, and after the verdict as well."""
    found = Watch(FIRST, asked=1, choices=1, also=("mean_prob", "min_prob"))
    see(found, delta(HIGH), delta(LOW))
    signals = report(found).signals
    assert signals["min_prob"] == pytest.approx(math.exp(LOW))
    assert signals["mean_prob"] == pytest.approx(math.exp((HIGH + LOW) / 2))
    alone = Watch(Policy(), asked=1, choices=1, also=("mean_prob",))
    see(alone, delta(LOW))
    assert report(alone).signals == {"mean_prob": pytest.approx(math.exp(LOW))}


# --------------------------------------------------------------------------- settled


def test_settled() -> None:
    """Every expected choice came, and each has committed."""
    found = watch(FIRST, choices=2)
    assert not settled(found)
    see(found, delta(HIGH))
    assert not settled(found)
    see(found, delta(HIGH, i=1))
    assert settled(found)


def test_an_abort_settles_nothing() -> None:
    """Unless that choice was cut: then it is out of the count."""
    found = watch(FIRST, choices=2)
    see(found, delta(LOW), delta(HIGH, i=1))
    assert not settled(found)
    found.mark_cut(0)
    assert settled(found)
    assert [choice.cut for choice in found.reports()] == [True, False]


def test_an_unknown_number_of_choices_never_settles() -> None:
    """One more may always come."""
    found = watch(FIRST, choices=None)
    see(found, delta(HIGH))
    assert not settled(found)


# --------------------------------------------------------------------------- failures


class _RaisingError(Exception):
    """Something a rule may raise."""


def _raise(*_: Any) -> Decision | None:
    raise _RaisingError


@pytest.mark.parametrize("method", ["push", "end"])
@pytest.mark.parametrize("closed", [False, True])
def test_a_rule_that_raises_is_contained(
    monkeypatch: pytest.MonkeyPatch, method: str, closed: bool
) -> None:
    """Counted once per choice; closed it is an abort with its own reason."""
    monkeypatch.setattr(rules.Evaluation, method, _raise)
    fail = FailPolicy(rule_error="closed" if closed else "open")
    found = watch(Policy(rule=MEAN3.rule, fail=fail))
    verdicts = see(found, delta(LOW, LOW), delta(fin="stop"))

    assert found.rule_errors == 1
    expected = Verdict(0, "abort", 1 if method == "push" else 2, "rule_error")
    assert verdicts == ([expected] if closed else [])
    assert (report(found).entries, report(found).signals) == (2, {})


def test_a_rule_that_raises_for_one_choice_spares_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each choice has its own evaluation."""
    push = Evaluation.push

    def some(self: Evaluation, item: Entry, position: int) -> Decision | None:
        if item.logprob == -7.0:
            raise _RaisingError
        return push(self, item, position)

    monkeypatch.setattr(Evaluation, "push", some)
    found = watch(FIRST, choices=2)
    assert [(v.index, v.kind) for v in see(found, delta(-7.0), delta(LOW, i=1))] == [(1, "abort")]


NO_SIGNAL = Policy(rule=Rule("mean_prob", 0.5, 3), fail=FailPolicy(no_signal="closed"))


@pytest.mark.parametrize(
    "silent", [delta(text=True), delta(None), delta(0.0, listed=False), delta(-9999.0, text=True)]
)
def test_no_signal_closed(silent: ChoiceDelta) -> None:
    """An abort where the last look would have been, counted in what came instead of evidence."""
    found = watch(NO_SIGNAL)
    assert see(found, delta()) == []
    assert see(found, silent) == []
    assert see(found, silent) == []
    (verdict,) = see(found, silent)
    assert (verdict.kind, verdict.reason) == ("abort", "no_signal")


def test_no_signal_closed_counts_entries_too() -> None:
    """Several unscorable ones in one event."""
    (verdict,) = see(watch(NO_SIGNAL), delta(None, None, None))
    assert verdict.reason == "no_signal"


def test_no_signal_closed_at_the_end() -> None:
    """An answer that ended before that many came, without any evidence."""
    found = watch(NO_SIGNAL)
    (verdict,) = see(found, delta(None, fin="stop"))
    assert (verdict.kind, verdict.reason) == ("abort", "no_signal")


def test_one_scorable_entry_is_a_signal() -> None:
    """However much silence follows; without a rule nothing is missing."""
    found = watch(NO_SIGNAL)
    see(found, delta(HIGH))
    for _ in range(9):
        assert see(found, delta(text=True)) == []
    unruled = watch(Policy(fail=FailPolicy.all("closed")))
    assert see(unruled, *[delta(text=True)] * 9, delta(fin="stop")) == []


def test_the_last_look_of_a_group() -> None:
    """The latest of its rules."""
    group = AnyOf((Rule("first_prob", 0.5, 1), Rule("mean_prob", 0.5, 4)))
    found = watch(Policy(rule=group, fail=FailPolicy(no_signal="closed")))
    assert see(found, delta(None, None, None)) == []
    assert [v.position for v in see(found, delta(None))] == [4]


def test_condemning() -> None:
    """An abort for every choice that has not finished; a verdict already given stands."""
    found = watch(FIRST, choices=3)
    see(found, delta(HIGH, i=0), delta(i=1), delta(HIGH, i=2, fin="stop"))
    verdicts = found.condemn("oversize")
    assert verdicts == [Verdict(0, "abort", 1, "oversize"), Verdict(1, "abort", 0, "oversize")]
    assert [(c.verdict, c.reason) for c in found.reports()] == [
        ("commit", None),
        ("abort", "oversize"),
        ("commit", None),
    ]


def test_condemning_a_stream_that_said_nothing() -> None:
    """Its first choice takes the blame."""
    assert watch(FIRST).condemn("unparsable") == [Verdict(0, "abort", 0, "unparsable")]


# --------------------------------------------------------------------------- state is bounded


def test_choices_are_bounded() -> None:
    """A server that invents more is not believed: they are neither judged nor kept."""
    found = watch(FIRST, choices=1)
    verdicts = see(found, *(delta(LOW, i=i) for i in range(MAX_CHOICES + 50)))
    found.note(MAX_CHOICES + 60, "stop")
    assert len(verdicts) == len(found.reports()) == MAX_CHOICES


def test_held_zeros_are_bounded() -> None:
    """Later ones never count."""
    found = watch(asked=None)
    for _ in range(5):
        see(found, delta(*[0.0] * MAX_BARE_ZEROS, listed=False))
    see(found, delta(LOW))
    assert report(found).scorable == MAX_BARE_ZEROS + 1


def test_a_long_answer_costs_no_memory() -> None:
    """Numbers are kept, entries are not."""
    found = watch(Policy(rule=Rule("quantile_prob", 0.5, 8)))
    see(found, delta(*[LOW] * 20))
    entries = [entry(LOW) for _ in range(5000)]
    before = [sys.getrefcount(item) for item in entries]
    see(found, ChoiceDelta(0, tuple(entries)))
    assert [sys.getrefcount(item) for item in entries] == before


def test_noting_without_reading() -> None:
    """Choices and finishes seen where entries are no longer read."""
    found = watch(FIRST, choices=2)
    found.note(0, None)
    found.note(1, "stop")
    assert (found.seen, found.finished) == (frozenset({0, 1}), frozenset({1}))
