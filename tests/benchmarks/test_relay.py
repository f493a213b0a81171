"""The relay benchmark counts right and reports in shape. Nothing here asserts a time."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import pytest
from benchmarks.relay import load, report, wire
from benchmarks.relay.caller import Caller, Tally
from benchmarks.relay.figures import Figures, Sample
from benchmarks.relay.run import run
from benchmarks.relay.scenarios import Scale
from benchmarks.relay.sender import Sender
from benchmarks.relay.subjects import Name

TINY = Scale(
    rounds=1,
    window_s=0.2,
    streams=4,
    direct=2,
    long_tokens=20,
    long_streams=2,
    short_streams=2,
    probe_streams=2,
    cancels=4,
    cancel_streams=2,
    crowd=5,
)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """One tiny run: the real proxy and a direct connection."""
    return run(TINY, names=("direct", "scoring"))


def value(samples: list[Sample], scenario: str, subject: str, name: str) -> float:
    """One number of the run."""
    (sample,) = [s for s in samples if (s.scenario, s.subject) == (scenario, subject)]
    return sample.values[name]


def test_every_load_gives_a_sample(samples: list[Sample]) -> None:
    """The proxy is measured in all scenarios, a direct connection where that means something."""
    found = {(s.scenario, s.subject) for s in samples}

    assert {scenario for scenario, subject in found if subject == "scoring"} == {
        *("memory", "paced", "unpaced", "request", "ttft", "gone", "verdict", "crowded")
    }
    assert {scenario for scenario, subject in found if subject == "direct"} == {
        *("paced", "ttft", "gone")
    }


def test_counts_are_those_of_the_load(samples: list[Sample]) -> None:
    """Something came in every window, and every cancel was seen."""
    for scenario, name in (("paced", "events"), ("unpaced", "events"), ("request", "requests")):
        assert value(samples, scenario, "scoring", name) > 0
    for scenario in ("gone", "verdict", "crowded"):
        assert value(samples, scenario, "scoring", "cancels") == TINY.cancels


def _has(tally: Tally, answers: int) -> bool:
    return tally.answers == answers


def test_every_event_is_counted_once() -> None:
    """Role, tokens, finish and end mark, of two answers on one connection."""
    tally = Tally()
    with load.running() as loop:
        sender = Sender(loop)
        caller = Caller(loop, sender, sender.port, tally)
        for answers in (1, 2):
            caller.ask(wire.Plan(wire.long_answer(20)))
            loop.run_until(partial(_has, tally, answers), "the answer")
        caller.leave()
        sender.close()

    assert tally.events == 2 * (20 + 3)
    assert len(tally.firsts) == 2


def test_a_relay_that_breaks_off_is_an_error() -> None:
    """Figures of a subject that loses answers would be worth nothing."""
    with load.running() as loop:
        sender = Sender(loop)
        caller = Caller(loop, sender, sender.port, Tally())
        caller.ask(wire.Plan(wire.endless_answer(), pace_s=0.01))
        loop.run_until(lambda: caller.events > 1, "some events")
        sender.close()
        with pytest.raises(load.LoadError, match="closed after"):
            loop.run_until(lambda: False, "the end")


def test_a_cut_is_a_cut(samples: list[Sample]) -> None:
    """At most one further event is written after the deciding one (I1)."""
    assert value(samples, "verdict", "scoring", "further_events_max") <= 1


def test_a_ratio_is_taken_within_a_round() -> None:
    """A machine that slows down between rounds moves no ratio."""
    name = "cpu_us_per_event"
    costs: dict[Name, float] = {"nginx": 10.0, "scoring": 20.0}
    made = [
        Sample(round=n, scenario="paced", subject=subject, values={name: cost * slowness})
        for n, slowness in enumerate((1.0, 10.0, 3.0), 1)
        for subject, cost in costs.items()
    ]
    figure = Figures(made).get("paced", "scoring", name)

    assert figure is not None
    assert (figure.low, figure.value, figure.high) == (20.0, 60.0, 200.0)
    assert figure.ratios == {"nginx": 2.0}


def test_the_tables_show_what_was_measured(samples: list[Sample], tmp_path: Path) -> None:
    """They stand between the marks of the page, in place of older ones; the rest stays."""
    figures = Figures(samples)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    text = report.tables(figures, TINY)
    report.write(page, text)
    written = page.read_text()

    assert written == f"before\n{report.BEGIN}\n\n{text}\n\n{report.END}\nafter\n"
    assert "| streamguard, scoring every event |" in text
    assert "nginx, unbuffered" not in text
    for line in text.splitlines():
        if line.startswith("| direct"):
            assert set(line) & set("0123456789"), line


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    """It is left as it was."""
    page = tmp_path / "page.md"
    page.write_text("nothing to see")
    with pytest.raises(ValueError, match="needs the marks"):
        report.write(page, "text")

    assert page.read_text() == "nothing to see"


def test_the_doubtful_event_is_where_the_cut_is_measured_from() -> None:
    """The event with the number `DIP_AT` is the improbable token; the role event is number 0."""
    doubtful = wire.doubtful_answer()
    low = [n for n, chunk in enumerate(doubtful.chunks) if b'"logprob":-27.' in chunk]

    assert low[0] == wire.DIP_AT
    assert dataclasses.replace(doubtful, endless=False).length == len(doubtful.chunks)
