"""Signals against a slow reference written from the definitions, with nothing shared but names."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamguard.core.events import Alternative, Entry
from streamguard.core.signals import (
    QUANTILE_ENTRIES,
    SIGNALS,
    EntropyConfidence,
    make,
    needed_alternatives,
)

PLAIN = ("first_prob", "mean_prob", "min_prob", "quantile_prob", "window_prob")
logprobs = st.floats(-30.0, 0.0)
runs = st.lists(logprobs, min_size=1, max_size=40)


def entry(logprob: float, *others: float, token: str = "t", emitted: bool = True) -> Entry:
    """An entry that lists itself first (unless told not to), then `others`."""
    listed = [Alternative(token, logprob)] if emitted else []
    listed += [Alternative(f"o{i}", log) for i, log in enumerate(others)]
    return Entry(token, logprob, None, listed)


def value(name: str, entries: list[Entry], **parameters: Any) -> float | None:
    signal = make(name, **parameters)
    for one in entries:
        signal.push(one)
    return signal.value()


def plain(name: str, logs: list[float], **parameters: Any) -> float | None:
    return value(name, [Entry("t", log) for log in logs], **parameters)


# --------------------------------------------------------------------------- the reference


def textbook_quantile(numbers: list[float], q: float) -> float:
    ranked = sorted(numbers)
    place = q * (len(ranked) - 1)
    below, above = math.floor(place), math.ceil(place)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def reference(name: str, logs: list[float], window: int) -> float | None:
    match name:
        case "first_prob":
            return math.exp(logs[0])
        case "mean_prob":
            return math.exp(statistics.fmean(logs))
        case "min_prob":
            return min(math.exp(log) for log in logs)
        case "quantile_prob":
            return textbook_quantile([math.exp(log) for log in logs], 0.1)
        case _:
            windows = [logs[i : i + window] for i in range(len(logs) - window + 1)]
            return min((math.exp(statistics.fmean(w)) for w in windows), default=None)


def entropy(ps: list[float]) -> float:
    return -math.fsum(p * math.log(p) for p in ps if p > 0.0)


# --------------------------------------------------------------------------- the plain five


@pytest.mark.parametrize("name", PLAIN)
@given(logs=runs, window=st.integers(1, 9))
@settings(max_examples=100)
def test_plain_signals_are_their_definitions(name: str, logs: list[float], window: int) -> None:
    """Each plain signal equals its definition for any run of logprobs."""
    expected = reference(name, logs, window)

    got = plain(name, logs, window=window)

    assert got == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-15))


@pytest.mark.parametrize("name", SIGNALS)
def test_nothing_pushed_says_nothing(name: str) -> None:
    """Before its first entry a signal has no value, not a zero."""
    assert make(name).value() is None


@pytest.mark.parametrize("name", PLAIN)
@given(logs=runs, at=st.integers(0, 39), less=st.floats(0.0, 30.0))
@settings(max_examples=100)
def test_lowering_one_logprob_never_raises_a_plain_signal(
    name: str, logs: list[float], at: int, less: float
) -> None:
    """Monotone in every logprob, to the last bit."""
    lowered = list(logs)
    lowered[at % len(logs)] -= less

    before, after = plain(name, logs, window=3), plain(name, lowered, window=3)

    assert (before is None) == (after is None)
    assert before is None or after is None or after <= before


@pytest.mark.parametrize("q", [0.05, 0.1, 0.5, 0.9])
@given(logs=runs)
@settings(max_examples=50)
def test_quantile_is_the_linear_one(q: float, logs: list[float]) -> None:
    """The interpolation is numpy's default, at any q."""
    expected = textbook_quantile([math.exp(log) for log in logs], q)

    assert plain("quantile_prob", logs, quantile=q) == pytest.approx(expected, abs=1e-12)


def test_quantile_is_frozen_after_its_last_entry() -> None:
    """Beyond `QUANTILE_ENTRIES` the value stays exact over those that came before."""
    logs = [-0.001 * (i % 977) for i in range(QUANTILE_ENTRIES)]

    exact = textbook_quantile([math.exp(log) for log in logs], 0.1)

    assert plain("quantile_prob", [*logs, *[-20.0] * 5000]) == pytest.approx(exact, abs=1e-12)


def test_window_needs_a_full_window() -> None:
    """With fewer than w entries there is no window, so no value."""
    assert plain("window_prob", [-9.0] * 7, window=8) is None
    assert plain("window_prob", [-9.0] * 8, window=8) == pytest.approx(math.exp(-9.0))


def test_window_sums_do_not_drift() -> None:
    """After 200,000 entries of mixed size a window of zeros is exactly certain."""
    signal = make("group_confidence", window=8)
    for i in range(200_000):
        signal.push(entry(-8000.0 if i % 3 else -1e-9, -0.1))
    for _ in range(8):
        signal.push(entry(0.0))

    assert signal.value() == 0.0


@pytest.mark.parametrize("name", PLAIN)
def test_a_logprob_just_above_zero_is_certainty(name: str) -> None:
    """p is clamped to 1 for a logprob in (0, 1e-6]."""
    assert plain(name, [1e-6] * 8) == 1.0


def test_an_unscorable_entry_is_refused() -> None:
    """A signal is fed scorable entries only; a missing logprob is the caller's fault."""
    with pytest.raises(ValueError, match="scorable"):
        make("mean_prob").push(Entry("t", None))


# --------------------------------------------------------------------------- margin


def test_margin_is_emitted_minus_best_other() -> None:
    """The mean of p(emitted) - p(best other listed), which may be negative."""
    entries = [entry(math.log(0.6), math.log(0.3), math.log(0.1)), entry(math.log(0.2), -0.5)]

    expected = ((0.6 - 0.3) + (0.2 - math.exp(-0.5))) / 2

    assert value("margin", entries) == pytest.approx(expected)


def test_margin_does_not_need_the_emitted_token_listed() -> None:
    """An absent emitted token leaves the whole list as others."""
    one = entry(math.log(0.1), math.log(0.7), math.log(0.2), emitted=False)

    assert value("margin", [one]) == pytest.approx(0.1 - 0.7)


def test_margin_skips_entries_without_another() -> None:
    """An entry that lists only itself adds nothing; if all do, there is no margin."""
    assert value("margin", [entry(-0.1), Entry("t", -0.1)]) is None
    assert value("margin", [entry(-9.0), entry(math.log(0.6), math.log(0.3))]) == pytest.approx(0.3)


def test_margin_tells_tokens_apart_by_bytes() -> None:
    """Two halves of characters share one string; their bytes say that they differ."""
    one = Entry(
        "\ufffd",
        math.log(0.5),
        [0xE2],
        [
            Alternative("\ufffd", math.log(0.5), [0xE2]),
            Alternative("\ufffd", math.log(0.5), [0xE3]),
        ],
    )

    assert value("margin", [one]) == pytest.approx(0.0)


def test_margin_tells_tokens_apart_by_value() -> None:
    """The same string with another value is another token."""
    one = Entry("\ufffd", math.log(0.6), None, [Alternative("\ufffd", math.log(0.3))])

    assert value("margin", [one]) == pytest.approx(0.3)


# --------------------------------------------------------------------------- entropy and group


@given(st.lists(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8), min_size=1, max_size=6))
@settings(max_examples=100)
def test_entropy_confidence_is_its_definition(tokens: list[list[float]]) -> None:
    """The mean over entries of 1 - H/ln k, the list renormalised, k its length."""
    entries, expected = [], []
    for weights in tokens:
        total = 1.3 * sum(weights)
        entries.append(entry(*(math.log(w / total) for w in weights)))
        shares = [w / sum(weights) for w in weights]
        expected.append(1.0 - entropy(shares) / math.log(len(shares)))

    got = value("entropy_confidence", entries)

    assert got == pytest.approx(statistics.fmean(expected), abs=1e-9)


@given(
    weights=st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=30),
    k=st.integers(2, 6),
    drawn=st.integers(0, 29),
    how=st.sampled_from(["top", "first"]),
)
@settings(max_examples=200)
def test_entropy_bounds_bracket_the_truth(
    weights: list[float], k: int, drawn: int, how: str
) -> None:
    """The true entropy lies between the bounds, also where the emitted token took a place."""
    total = sum(weights)
    ranked = sorted((w / total for w in weights), reverse=True)
    k = min(k, len(ranked) - 1)
    place = drawn % len(ranked)
    emitted = math.log(ranked[place])
    named = [Alternative(str(i), math.log(p)) for i, p in enumerate(ranked)]
    top = named[:k]
    if how == "first" and place >= k:
        top = [named[place], *named[: k - 1]]  # vLLM: the emitted token, then the k - 1 best
    signal = make("entropy_confidence", asked=k)
    signal.push(Entry(str(place), emitted, None, top))

    assert isinstance(signal, EntropyConfidence)
    bounds = signal.bounds(len(ranked))

    assert bounds is not None
    assert bounds[0] - 1e-9 <= entropy(ranked) <= bounds[1] + 1e-9


def test_entropy_bounds_need_a_vocabulary_above_k() -> None:
    """Bounds over fewer tokens than were listed make no sense, and without entries are none."""
    signal = make("entropy_confidence")
    assert isinstance(signal, EntropyConfidence)
    assert signal.bounds(10) is None
    signal.push(entry(-1.0, -1.0))

    with pytest.raises(ValueError, match="vocabulary"):
        signal.bounds(2)


def test_entropy_needs_two_alternatives() -> None:
    """One listed alternative has no spread: the entry adds nothing."""
    assert value("entropy_confidence", [entry(-0.1), Entry("t", -0.1)]) is None


def test_group_confidence_is_the_last_window() -> None:
    """The mean over the last w entries of -(1/k) sum of the listed logprobs."""
    rows = [(-0.1, -3.0), (-0.2, -5.0), (-1.0, -1.5), (-0.5, -2.5)]
    each = [-sum(row) / 2 for row in rows]

    got = value("group_confidence", [entry(*row) for row in rows], window=3)

    assert got == pytest.approx(statistics.fmean(each[-3:]))


def test_group_confidence_of_a_short_answer_is_the_mean_of_what_there_is() -> None:
    """Before w entries the window is what there is; entries that list nothing are not in it."""
    entries = [entry(-0.1, -3.0), Entry("t", -7.0), entry(-0.2, -5.0)]

    assert value("group_confidence", entries, window=8) == pytest.approx((1.55 + 2.6) / 2)


@pytest.mark.parametrize("name", ["entropy_confidence", "group_confidence"])
def test_an_appended_emitted_token_is_left_out(name: str) -> None:
    """As the k+1st, from outside the top, the emitted token changes nothing."""
    logs = [-0.2, -2.0, -4.0]
    top = [Alternative(f"o{i}", log) for i, log in enumerate(logs)]
    emitted = Alternative("t", -9.0)

    absent = value(name, [Entry("t", -9.0, None, top)], asked=3)

    assert value(name, [Entry("t", -9.0, None, [*top, emitted])], asked=3) == absent
    assert value(name, [Entry("t", -9.0, None, [emitted, *top])], asked=3) == absent


@pytest.mark.parametrize("name", ["entropy_confidence", "group_confidence"])
def test_an_emitted_token_within_the_top_stays(name: str) -> None:
    """More than asked are listed, but the emitted token ranks among the best: all count."""
    listed = entry(-0.2, -2.0, -4.0)

    assert value(name, [listed], asked=2) == value(name, [listed])


@pytest.mark.parametrize("name", ["entropy_confidence", "group_confidence"])
def test_k_takes_the_best(name: str) -> None:
    """With a k, more listed alternatives change nothing, in whatever order they come."""
    assert value(name, [entry(-3.0, -4.0, -0.2, -2.0)], k=2) == pytest.approx(
        value(name, [entry(-0.2, -2.0)])
    )


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf, 0.5, -9000.0, -9999.0, -3e38])
@pytest.mark.parametrize("name", ["margin", "entropy_confidence", "group_confidence"])
def test_unscorable_alternatives_are_left_out(name: str, bad: float | None) -> None:
    """A sentinel among the alternatives carries no mass, no rank and no place in k."""
    clean = entry(-0.5, -1.5, -3.0)
    assert clean.top_logprobs is not None
    dirty = Entry("t", -0.5, None, [Alternative("x", bad), *clean.top_logprobs])

    assert value(name, [dirty]) == value(name, [clean])


@pytest.mark.parametrize("name", ["margin", "entropy_confidence", "group_confidence"])
def test_the_sentinel_floor_of_a_provider_holds_for_alternatives(name: str) -> None:
    """Where -100 is the sentinel, an alternative at -100 is none."""
    assert value(name, [entry(-0.5, -1.5, -100.0)], floor=-99.0) == value(
        name, [entry(-0.5, -1.5)], floor=-99.0
    )


hostile = st.one_of(
    st.none(), st.floats(), st.sampled_from([-8999.0, -800.0, 0.0, -0.0, 1e-6, 5e-324, -5e-324])
)
scorable = st.one_of(st.floats(-8999.0, 1e-6), st.sampled_from([-0.0, 1e-6, -8999.0]))


@pytest.mark.parametrize("name", SIGNALS)
@given(
    rows=st.lists(st.tuples(scorable, st.lists(hostile, max_size=6)), min_size=1, max_size=12),
    listed=st.booleans(),
    asked=st.sampled_from([None, 0, 1, 5]),
)
@settings(max_examples=60)
def test_values_stay_in_range(
    name: str,
    rows: list[tuple[float, list[float | None]]],
    listed: bool,
    asked: int | None,
) -> None:
    """No NaN, no infinity, no value outside the signal's range, whatever is listed."""
    signal = make(name, window=3, asked=asked)
    low = -1.0 if name == "margin" else 0.0
    high = math.inf if name == "group_confidence" else 1.0
    for log, others in rows:
        top = [Alternative("t", log)] * listed + [Alternative("o", other) for other in others]
        signal.push(Entry("t", log, None, top))

        got = signal.value()

        assert got is None or (math.isfinite(got) and low <= got <= high)
        if isinstance(signal, EntropyConfidence) and (bounds := signal.bounds(100_000)):
            assert all(map(math.isfinite, bounds))
            assert bounds[0] <= bounds[1]


# --------------------------------------------------------------------------- by name


def test_needed_alternatives() -> None:
    """The plain five need none, a margin two, the top-k signals their k, five by default."""
    needed = {name: needed_alternatives(name) for name in SIGNALS}

    assert needed == dict.fromkeys(PLAIN, 0) | {
        "margin": 2,
        "entropy_confidence": 5,
        "group_confidence": 5,
    }
    assert needed_alternatives("group_confidence", 20) == 20


def test_an_unknown_name_is_an_error() -> None:
    """No signal is made for a name that is none."""
    with pytest.raises(ValueError, match="no signal"):
        make("luck")
