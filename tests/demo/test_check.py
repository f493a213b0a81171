"""The demo's own judge: each story that does not fit is told, each that does is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.recordings import HIGH, LOW, recording
from tests.support.streams import DONE, event

from streamguard.demo.cases import RULE, plan
from streamguard.demo.check import failures
from streamguard.demo.stream import Stream
from streamguard.sim.recordings import Recording

CUT_AT = RULE.start or RULE.first


def story(*, low: bool, asks: bool = True) -> Stream:
    """A stream about which proxy, provider and client agree."""
    course = [LOW if low else HIGH] * RULE.first + [0.8, 0.7]
    found = msgspec.convert(recording("one", course), Recording)
    case = plan([found] if asks else [found, found])[-1]
    stream = Stream(case)
    verdict = "abort" if low else "commit"
    at = CUT_AT if low else RULE.first
    choice = {"verdict": verdict, "position": at, "score": 0.2, "threshold": 0.5, "cut": low}
    stream.report = {"id": "g", "choices": [choice]}
    stream.line = {
        "tokens_sent": at if low else len(course),
        "closed_by": "client" if low else "server",
        "closed_after_ms": 0.5 if low else None,
    }
    if low:
        facts = {"verdict": "abort", "position": at}
        tail = event({"choices": [], "streamguard": facts}) + DONE
        stream.receive(b"".join(case.whole[: at + 1]) + tail)  # the role event comes first
    else:
        stream.receive(b"".join(case.whole))
    return stream


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("asks", [True, False])
def test_one_story_has_no_failures(low: bool, asks: bool) -> None:
    """Cut or kept, asked for or injected."""
    assert failures([story(low=low, asks=asks)]) == []


Change = Callable[[Stream], Any]


def report(**values: Any) -> Change:
    """A proxy that says something else."""
    return lambda stream: (stream.report or {})["choices"][0].update(values)


def line(**values: Any) -> Change:
    """A provider that says something else."""
    return lambda stream: (stream.line or {}).update(values)


def body(change: Callable[[bytes], bytes]) -> Change:
    """A client that got something else."""

    def apply(stream: Stream) -> None:
        stream.body[:] = change(bytes(stream.body))

    return apply


@pytest.mark.parametrize(
    ("low", "change", "says"),
    [
        (True, line(closed_by=None, closed_after_ms=None), "the provider saw no close"),
        (True, line(closed_by="server", closed_after_ms=None), "the provider saw no close"),
        (True, line(tokens_sent=RULE.first + 2), "the provider sent all of it"),
        (True, report(cut=False), "it should have been cut, and was not"),
        (True, report(position=99), "the verdict was abort at 99; replaying the recording gives"),
        (True, report(verdict="commit"), f"the verdict was commit at {CUT_AT}"),
        (True, body(lambda b: b.replace(b"t0 ", b"t9 ", 1)), "before the cut did not arrive byte"),
        (True, body(lambda b: b.removesuffix(DONE)), "does not end with one event of the proxy's"),
        (True, body(lambda b: b.removesuffix(DONE) + DONE * 2), "does not end with one event"),
        (True, body(lambda b: b.replace(b"streamguard", b"nothing")), "does not say why"),
        (False, report(cut=True), "it was cut"),
        (False, line(closed_by="client"), "the provider could not send all of it"),
        (False, line(tokens_sent=2), "the provider could not send all of it"),
        (False, body(lambda b: b.replace(b"t1 ", b"t9 ", 1)), "did not arrive byte for byte"),
        (False, body(lambda b: b[:-1]), "did not arrive byte for byte"),
        (False, lambda s: setattr(s, "report", None), "the proxy has no record of it"),
        (False, lambda s: setattr(s, "line", None), "the provider has no record of it"),
        (False, lambda s: setattr(s, "problem", "status 502"), "no whole response (status 502)"),
    ],
)
def test_another_story_is_told(low: bool, change: Change, says: str) -> None:
    """Each with the name of the recording."""
    stream = story(low=low)
    change(stream)
    found = failures([stream])

    assert any(says in problem for problem in found), found
    assert all(problem.startswith("one: ") for problem in found)
