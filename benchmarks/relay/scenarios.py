"""The loads: what is put on a subject, and which numbers come of it.

Each function loads one subject once and gives a sample: named numbers, units in the names. What a
subject adds is its own figure minus that of a direct connection in the same seconds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Final, Literal, get_args

from benchmarks.relay import wire
from benchmarks.relay.caller import Caller, Tally
from benchmarks.relay.load import LoadError, Loop, now
from benchmarks.relay.process import Usage, rss_bytes, usage
from benchmarks.relay.sender import Sender
from benchmarks.relay.subjects import Subject
from benchmarks.relay.wire import Course, Plan

Scenario = Literal["memory", "paced", "unpaced", "request", "ttft", "gone", "verdict", "crowded"]
SCENARIOS: Final[tuple[Scenario, ...]] = get_args(Scenario)
Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything.

    Attributes:
        rounds: how often each subject is loaded in each way.
        window_s: how long a load is measured.
        streams, pace_s: paced streams, and the time from event to event.
        direct: direct streams beside them.
        long_tokens, long_streams: of the answers sent as fast as they are taken.
        short_streams: connections that ask one short answer after the other.
        probe_streams: paced streams while the time to the first event is measured.
        cancels, cancel_streams: how many streams are ended early; how many at once.
        crowd, crowd_pace_s: open streams where memory is read, and beside the cancels of
            `crowded`.
    """

    rounds: int = 5
    window_s: float = 1.8
    streams: int = 50
    pace_s: float = 0.02
    direct: int = 5
    long_tokens: int = 500
    long_streams: int = 16
    short_streams: int = 4
    probe_streams: int = 20
    cancels: int = 100
    cancel_streams: int = 10
    crowd: int = 200
    crowd_pace_s: float = 0.1


FULL: Final = Scale()
QUICK: Final = Scale(rounds=2, window_s=0.4, cancels=20)

_SETTLE_S: Final = 0.2
_WARM_REQUESTS: Final = 20
_PROBE_PAUSE_S: Final = 0.001
_LEAVE_AFTER: Final = wire.DIP_AT + 1


class Bench:
    """Sender, clients and their loop.

    Args:
        loop, sender: running.
        scale: how much of everything.
    """

    def __init__(self, loop: Loop, sender: Sender, scale: Scale) -> None:
        self._loop = loop
        self._sender = sender
        self._scale = scale
        self._endless = wire.endless_answer()
        self._long = wire.long_answer(scale.long_tokens)
        self._short = wire.short_answer()
        self._doubtful = wire.doubtful_answer()

    def sample(self, scenario: Scenario, subject: Subject) -> Values | None:
        """Load a subject. None where the load makes no sense for it.

        Raises:
            LoadError: it did not do what a relay does.
        """
        if subject.pid is None and scenario not in ("gone", "ttft", "paced"):
            return None
        if scenario in ("verdict", "crowded") and subject.name != "scoring":
            return None
        loads: dict[Scenario, Callable[[Subject], Values]] = {
            "memory": self._memory,
            "paced": self._paced,
            "unpaced": self._unpaced,
            "request": self._request,
            "ttft": self._ttft,
            "gone": self._gone,
            "verdict": self._verdict,
            "crowded": self._crowded,
        }
        gc.collect()
        gc.disable()  # a collection in the load would be a delay of the subject
        try:
            return loads[scenario](subject)
        finally:
            gc.enable()

    # ------------------------------------------------------------------ cost

    def _paced(self, subject: Subject) -> Values:
        """Open streams at the pace of a model: cost and delay per event."""
        scale = self._scale
        tally, direct = Tally(), Tally()
        with (
            self._streams(subject, scale.streams, tally),
            self._streams(subject, scale.direct, direct, port=self._sender.port),
        ):
            meter = _Meter(subject)
            self._measure(tally, direct)
            used = meter.read()
        return {
            **used.per("event", tally.events),
            "events": tally.events,
            "events_per_s": tally.events / used.wall_s,
            **_added("lag", tally.lags, direct.lags),
        }

    def _unpaced(self, subject: Subject) -> Values:
        """Answers as fast as they are taken, one write per event."""
        return self._closed(subject, self._long, self._scale.long_streams, "event")

    def _request(self, subject: Subject) -> Values:
        """Short answers one after the other: cost per request."""
        return self._closed(subject, self._short, self._scale.short_streams, "request")

    def _closed(
        self, subject: Subject, course: Course, streams: int, per: Literal["event", "request"]
    ) -> Values:
        tally = Tally()
        callers = [Caller(self._loop, self._sender, subject.port, tally) for _ in range(streams)]
        for caller in callers:
            self._repeat(caller, lambda: Plan(course, asks=subject.client_asks))
        self._loop.run_until(lambda: tally.answers >= streams, "the first answers")
        meter = _Meter(subject)
        self._measure(tally)
        used = meter.read()
        self._dismiss(callers)
        count = tally.events if per == "event" else tally.answers
        return {**used.per(per, count), f"{per}s": count, f"{per}s_per_s": count / used.wall_s}

    # ------------------------------------------------------------------ delay

    def _ttft(self, subject: Subject) -> Values:
        """From the request to the first event, in turns with a direct connection."""
        through, direct = Tally(), Tally()
        probes = [
            Caller(self._loop, self._sender, subject.port, through),
            Caller(self._loop, self._sender, self._sender.port, direct),
        ]
        turns = cycle(probes)
        with self._streams(subject, self._scale.probe_streams, Tally()):
            end = now() + self._scale.window_s

            def ask() -> None:
                if now() < end:
                    next(turns).ask(Plan(self._short, asks=subject.client_asks), rest)

            def rest() -> None:
                self._loop.at(now() + _PROBE_PAUSE_S, ask)

            ask()
            self._loop.run_for(self._scale.window_s)
            self._loop.run_until(lambda: not any(p.plan for p in probes), "the last probe")
        self._dismiss(probes)
        return {"requests": len(through.firsts), **_added("ttft", through.firsts, direct.firsts)}

    # ------------------------------------------------------------------ ends

    def _gone(self, subject: Subject) -> Values:
        """Clients leave in the middle: until the sender sees the close."""
        plans = self._cancels(
            subject,
            lambda: Plan(
                self._endless,
                self._scale.pace_s,
                subject.client_asks,
                leave_after=_LEAVE_AFTER,
            ),
        )
        return _closes([(plan, _known(plan.left_at)) for plan in plans])

    def _verdict(self, subject: Subject) -> Values:
        """The rule cuts: from the write of the deciding event until the sender sees the close."""
        plans = self._cancels(
            subject, lambda: Plan(self._doubtful, self._scale.pace_s, subject.client_asks)
        )
        for plan in plans:
            if len(plan.sent_at) <= wire.DIP_AT:
                raise LoadError("a stream was cut before its doubtful event")
        return _closes([(plan, plan.sent_at[wire.DIP_AT]) for plan in plans])

    def _crowded(self, subject: Subject) -> Values:
        """The same, beside a crowd of open streams."""
        with self._streams(subject, self._scale.crowd, Tally(), pace_s=self._scale.crowd_pace_s):
            return self._verdict(subject)

    def _cancels(self, subject: Subject, plan: Callable[[], Plan]) -> list[Plan]:
        scale, loop = self._scale, self._loop
        plans: list[Plan] = []
        begun = 0
        callers = [
            Caller(loop, self._sender, subject.port, Tally()) for _ in range(scale.cancel_streams)
        ]

        def go(caller: Caller) -> None:
            nonlocal begun
            if begun < scale.cancels:
                begun += 1
                plans.append(plan())
                caller.ask(plans[-1], partial(loop.soon, partial(go, caller)))

        for turn, caller in enumerate(callers):
            loop.at(now() + turn * scale.pace_s / len(callers), partial(go, caller))
        loop.run_until(
            lambda: len(plans) == scale.cancels and all(p.closed_at is not None for p in plans),
            "the sender to see every close",
        )
        self._dismiss(callers)
        return plans

    # ------------------------------------------------------------------ memory

    def _memory(self, subject: Subject) -> Values:
        """Resident memory, idle and with a crowd of open streams. Meaningful once per process."""
        assert subject.pid is not None
        tally = Tally()
        caller = Caller(self._loop, self._sender, subject.port, tally)
        self._repeat(caller, lambda: Plan(self._short, asks=subject.client_asks))
        self._loop.run_until(lambda: tally.answers >= _WARM_REQUESTS, "the first requests")
        self._dismiss([caller])
        idle = rss_bytes(subject.pid)
        with self._streams(subject, self._scale.crowd, tally, pace_s=self._scale.crowd_pace_s):
            self._loop.run_for(self._scale.window_s / 2)
            full = rss_bytes(subject.pid)
        return {
            "idle_mb": idle / 1e6,
            "crowd_mb": full / 1e6,
            "stream_kb": (full - idle) / self._scale.crowd / 1e3,
        }

    # ------------------------------------------------------------------ tools

    @contextmanager
    def _streams(
        self,
        subject: Subject,
        count: int,
        tally: Tally,
        *,
        port: int | None = None,
        pace_s: float | None = None,
    ) -> Iterator[None]:
        """Paced streams, open and evenly spread in time; closed afterwards."""
        pace = pace_s or self._scale.pace_s
        callers = [
            Caller(self._loop, self._sender, port or subject.port, tally) for _ in range(count)
        ]
        begin = now()
        for turn, caller in enumerate(callers):
            plan = Plan(self._endless, pace, subject.client_asks)
            self._loop.at(begin + turn * pace / count, partial(caller.ask, plan))
        self._loop.run_until(lambda: all(c.events > 1 for c in callers), "all streams to flow")
        try:
            yield
        finally:
            self._dismiss(callers)

    def _measure(self, *tallies: Tally) -> None:
        for tally in tallies:
            tally.clear()
        self._loop.run_for(self._scale.window_s)

    def _repeat(self, caller: Caller, plan: Callable[[], Plan]) -> None:
        """Ask, and ask again whenever an answer has ended."""

        def again() -> None:
            if not caller.dismissed:
                caller.ask(plan(), again)

        again()

    def _dismiss(self, callers: Sequence[Caller]) -> None:
        """End their connections, and wait until that has gone through."""
        left = [caller.plan for caller in callers if caller.plan is not None]
        for caller in callers:
            caller.dismiss()
        self._loop.run_until(
            lambda: not any(plan.runs for plan in left), "the sender to see every close"
        )
        self._loop.run_for(_SETTLE_S)


@dataclass(frozen=True, slots=True)
class _Used:
    """What a subject used in a window. None: there is no process in between."""

    usage: Usage | None
    wall_s: float

    def per(self, what: str, count: int) -> Values:
        """Per event or request, with the share of the time spent waiting for the core."""
        if not count:
            raise LoadError(f"not one {what} came through")
        used = self.usage
        if used is None:
            return {}
        return {
            f"cpu_us_per_{what}": used.cpu_s / count * 1e6,
            "waited_share": used.waited_s / self.wall_s,
        }


class _Meter:
    """Reads the clock and the subject's usage, twice."""

    def __init__(self, subject: Subject) -> None:
        self._pid = subject.pid
        self._at = now()
        self._before = None if subject.pid is None else usage(subject.pid)

    def read(self) -> _Used:
        wall_s = now() - self._at
        if self._pid is None or self._before is None:
            return _Used(None, wall_s)
        return _Used(usage(self._pid).since(self._before), wall_s)


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile.

    Raises:
        LoadError: there is no value.
    """
    if not values:
        raise LoadError("nothing was measured")
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def _added(name: str, through: Sequence[float], direct: Sequence[float]) -> Values:
    """Median and 99th percentile, as they are and minus the direct connection's, in µs."""
    values: Values = {}
    for word, share in (("p50", 0.5), ("p99", 0.99)):
        own, other = quantile(through, share) * 1e6, quantile(direct, share) * 1e6
        values[f"{name}_{word}_us"] = own
        values[f"added_{name}_{word}_us"] = own - other
    return values


def _closes(cancels: Sequence[tuple[Plan, float]]) -> Values:
    """How long closes took to arrive, and how many events were sent meanwhile."""
    took = [_known(plan.closed_at) - begun for plan, begun in cancels]
    further = [sum(t > begun for t in plan.sent_at) for plan, begun in cancels]
    return {
        "cancels": len(cancels),
        "close_p50_ms": quantile(took, 0.5) * 1e3,
        "close_p99_ms": quantile(took, 0.99) * 1e3,
        "further_events_mean": sum(further) / len(further),
        "further_events_max": max(further),
    }


def _known(time_s: float | None) -> float:
    assert time_s is not None, "only asked once it has happened"
    return time_s
