"""One guarded stream at a time, without sockets: bytes in, and what came of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tests.reference import scores
from tests.reference.reader import Answer, read_body, sse_events

from streamguard.core.events import Action, Cancel, ChoiceReport, End, Refuse, Send, StreamReport
from streamguard.core.guard import Guard
from streamguard.core.request import Prepared
from streamguard.core.signals import SIGNALS
from streamguard.core.specs import Policy, Rule

OBSERVE = Policy(mode="observe")
SURE = Policy(rule=Rule(signal="mean_prob", below=0.5, first=2))
"""Enforced: an answer whose first two tokens are below one half is cut."""


def prepared(**fields: Any) -> Prepared:
    """A request that asked for one alternative itself, unless `fields` say otherwise."""
    given: dict[str, Any] = {
        "guarded": True,
        "dialect": "chat",
        "body": b"{}",
        "original": b"{}",
        "asked": 1,
    }
    return Prepared(**(given | fields))


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one stream."""

    guard: Guard
    actions: list[Action]
    sent: bytes
    report: StreamReport

    @property
    def choice(self) -> ChoiceReport:
        """The only choice."""
        (choice,) = self.report.choices
        return choice

    @property
    def cancelled(self) -> bool:
        return any(isinstance(action, Cancel) for action in self.actions)

    @property
    def end(self) -> Action:
        return self.actions[-1]


def run(
    body: bytes | Iterable[bytes],
    policy: Policy = OBSERVE,
    request: Prepared | None = None,
    *,
    status: int = 200,
    content_type: str | None = "text/event-stream",
    encoding: str | None = None,
    clean: bool = True,
) -> Run:
    """Feed a body, whole or in the given reads, to its end."""
    guard = Guard(policy, request or prepared(), id="rid", now=0.0, also=SIGNALS)
    actions = guard.start() + guard.receive_head(status, content_type, encoding, 0.0)
    for piece in [body] if isinstance(body, bytes) else body:
        actions += guard.receive_data(piece, 0.0)
    actions += guard.receive_eof(0.0, clean=clean)
    sent = b"".join(action.data for action in actions if isinstance(action, Send))
    return Run(guard, actions, sent, guard.report())


def oracle(body: bytes, *, clean: bool = True) -> Answer:
    """The independent reading of the same bytes."""
    return read_body(body, clean=clean)


def check(body: bytes, *, asked: int | None = 1, clean: bool = True) -> Run:
    """Observe a stream, and compare every figure with the oracle's; no byte may change."""
    found = run(body, OBSERVE, prepared(asked=asked, choices=None), clean=clean)
    answer = oracle(body, clean=clean)
    assert found.report.outcome == answer.outcome
    assert found.report.events == answer.events
    assert [choice.index for choice in found.report.choices] == sorted(answer.choices)
    for choice in found.report.choices:
        wanted = scores.figures(answer.choices[choice.index], asked)
        for name, value in wanted.items():
            got = getattr(choice, name)
            if name == "signals":
                assert got.keys() == value.keys()
                assert all(_near(got[key], value[key]) for key in value), (got, value)
            else:
                assert _near(got, value), (name, got, value)
    if not clean:
        # An event that broke off is left out, and an answer that did may get an error event.
        pairs = zip(found.sent, body, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        assert len(sse_events(body[same:])[0]) <= 1
        assert found.sent[same:] == b"" or answer.outcome == "upstream_truncated"
    elif answer.outcome == "upstream_truncated":
        assert found.sent.startswith(body)
    else:
        assert found.sent == body
    if found.sent or body == b"":
        assert found.end == End(clean and answer.outcome != "upstream_truncated")
    else:
        assert refusal(found).status == 502  # nothing was sent: a status can still be chosen
    return found


def refusal(found: Run) -> Refuse:
    """The answer that replaced the upstream's."""
    (refused,) = [action for action in found.actions if isinstance(action, Refuse)]
    return refused


def _near(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(got, float):
        return abs(got - wanted) <= 1e-9 * max(1.0, abs(wanted))
    return bool(got == wanted)
