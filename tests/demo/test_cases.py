"""What the demo sets out to do."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.support.recordings import HIGH, LOW, recording
from tests.support.streams import Dialect, nulled

from streamguard.cli.policy_flags import build_policy
from streamguard.core.specs import Rule
from streamguard.demo.cases import RULE, Case, flags, plan
from streamguard.sim.recordings import Recording


def cases(*probabilities: list[float], dialect: Dialect = "chat", **more: Any) -> list[Case]:
    """One case for each course."""
    lines = [recording(f"r{n}", p, dialect=dialect) for n, p in enumerate(probabilities)]
    return plan(msgspec.convert([{**line, **more} for line in lines], list[Recording]))


@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_half_of_the_clients_ask_themselves(dialect: Dialect) -> None:
    """The others leave the fields out, and expect null where the proxy asked for them."""
    first, second = cases([0.9, 0.9], [0.9, 0.9], dialect=dialect)
    asked, silent = json.loads(first.body), json.loads(second.body)

    assert (first.asks, second.asks) == (True, False)
    assert "logprobs" in asked
    assert not {"logprobs", "top_logprobs"} & silent.keys()
    assert (asked["model"], silent["model"]) == ("recorded/r0", "recorded/r1")
    assert b"".join(second.whole) == nulled(b"".join(first.whole))


def test_what_must_come_of_it_is_known_before() -> None:
    """Low where the rule looks is an abort; in an answer's last event it leaves nothing to cut."""
    low, high = cases([LOW] * RULE.first + [HIGH], [HIGH] * RULE.first + [LOW])
    short = recording("r", [LOW] * (RULE.start or RULE.first))
    at_ms, text = short["events"][-3]  # the last token; finish and end mark follow
    payload = json.loads(text.removeprefix("data: "))
    payload["choices"][0]["finish_reason"] = "length"
    short["events"][-3] = [at_ms, f"data: {json.dumps(payload)}\n\n"]
    (last,) = plan([msgspec.convert(short, Recording)])

    assert low.expected is not None
    assert (low.expected.kind, low.expected.position) == ("abort", RULE.start or RULE.first)
    assert low.cuts
    assert low.deciding == low.expected.position + 1  # the role event comes first
    assert high.expected is not None
    assert (high.expected.kind, high.cuts) == ("commit", False)
    assert last.expected is not None
    assert (last.expected.kind, last.cuts) == ("abort", False)


def test_the_course_runs_along_the_events() -> None:
    """One value an event, none before the first token."""
    (case,) = cases([0.5, 0.5, 0.5])
    assert len(case.course) == len(case.whole)
    assert case.course[0] is None
    assert case.course[1:] == pytest.approx([0.5] * (len(case.whole) - 1))


@pytest.mark.parametrize(
    "rule",
    [
        RULE,
        Rule(signal="mean_prob", below=0.4, first=9, start=3, patience=2, skip=("special",)),
    ],
)
def test_the_proxy_is_given_the_very_rule(rule: Rule) -> None:
    """The flags that go to `serve` read back as the rule that the demo judges by."""
    words = flags(rule)
    given: dict[str, Any] = {}
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_").replace("from", "start")
        value: Any = words.pop(0) if words and not words[0].startswith("--") else True
        numbers = {"below": float, "first": int, "start": int, "patience": int}
        given[name] = numbers[name](value) if name in numbers else value

    assert build_policy(**given).rule == rule
