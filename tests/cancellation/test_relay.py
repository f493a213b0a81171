"""`drive.relay` on both backends: cancelled at every await, and through every ending.

The scripted upstream and sink count their awaits and let the test cancel the relay inside any of
them. What must hold each time: every upstream that was opened is closed, the guard has ended, no
task is left, and nothing was sent after the close that `Cancel` asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from tests.reference.build import C, D, E, L, event

from streamguard.core.capabilities import Limits
from streamguard.core.events import Outcome, Refuse
from streamguard.core.guard import Clocks, Guard
from streamguard.core.request import prepare
from streamguard.core.specs import FailPolicy, Policy, Rule
from streamguard.drive import CLOSE_S, OpenUpstream, relay

pytestmark = pytest.mark.anyio

POLICY = Policy(name="p", rule=Rule("first_prob", 0.5, 1))
CLOSED = FailPolicy.all("closed")
PLAIN = b'{"model":"m","messages":[],"stream":true}'
OWN = b'{"model":"m","messages":[],"stream":true,"logprobs":true,"top_logprobs":1}'
LOW = C(0, "a", L(E("a", -3.0, 1)))
HIGH = C(0, "a", L(E("a", -0.1, 1)))
FIN = C(0, {}, None, "stop")
REFUSAL = json.dumps({"error": {"message": "logprobs is not supported"}}).encode()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every test runs on both."""
    backend: str = request.param
    return backend


# --------------------------------------------------------------------------- the scripted world


class Awaits:
    """Counts the awaits of a run; at the chosen one it has the relay cancelled."""

    def __init__(self, cancel_at: int = 0) -> None:
        self.count = 0
        self.places: list[str] = []
        self.scope: anyio.CancelScope | None = None
        self._cancel_at = cancel_at

    async def here(self, place: str) -> None:
        """One await."""
        self.count += 1
        self.places.append(place)
        if self.count == self._cancel_at:
            assert self.scope is not None
            self.scope.cancel()
        await anyio.lowlevel.checkpoint()


Read = bytes | Exception


@dataclass
class Answer:
    """One scripted response. An exception among the reads is raised in its turn."""

    reads: list[Read]
    status: int = 200
    content_type: str | None = "text/event-stream"
    content_encoding: str | None = None


class FakeUpstream:
    """One open response. After its reads it is at its end, or (`hangs`) says nothing for ever."""

    def __init__(self, world: World, answer: Answer) -> None:
        self._world = world
        self._reads = list(answer.reads)
        self.status = answer.status
        self.content_type = answer.content_type
        self.content_encoding = answer.content_encoding
        self.closes = 0

    async def receive(self) -> bytes:
        await self._world.awaits.here("receive")
        if not self._reads:
            if self._world.hangs:
                await anyio.sleep_forever()
            return b""
        read = self._reads.pop(0)
        if isinstance(read, Exception):
            raise read
        return read

    async def aclose(self) -> None:
        self.closes += 1
        self._world.log.append("close")
        if self._world.close_error is not None:
            raise self._world.close_error
        if self._world.close_hangs:
            await anyio.sleep_forever()
        await self._world.awaits.here("aclose")


@dataclass
class World:
    """Everything around the relay, and a log of what it did."""

    answers: list[Answer]
    awaits: Awaits = field(default_factory=Awaits)
    hangs: bool = False
    open_error: Exception | None = None
    open_hangs: bool = False
    close_error: Exception | None = None
    close_hangs: bool = False
    sink_error: Exception | None = None
    log: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    upstreams: list[FakeUpstream] = field(default_factory=list)
    sent: bytes = b""
    refusal: Refuse | None = None

    async def open(self, body: bytes) -> FakeUpstream:
        self.bodies.append(body)
        await self.awaits.here("open")
        if self.open_error is not None:
            raise self.open_error
        if self.open_hangs:
            await anyio.sleep_forever()
        upstream = FakeUpstream(self, self.answers[len(self.upstreams)])
        self.upstreams.append(upstream)
        self.log.append("open")
        return upstream

    async def send(self, data: bytes) -> None:
        self.log.append("send")
        await self.awaits.here("send")
        if self.sink_error is not None:
            raise self.sink_error
        self.sent += data

    async def refuse(self, refusal: Refuse) -> None:
        self.log.append("refuse")
        await self.awaits.here("refuse")
        self.refusal = refusal

    async def end(self, *, clean: bool) -> None:
        self.log.append("end" if clean else "broken")
        await self.awaits.here("end")

    @property
    def closed(self) -> bool:
        """Every upstream that was opened is closed."""
        return all(upstream.closes >= 1 for upstream in self.upstreams)


def guard_for(body: bytes = OWN, clocks: Clocks | None = None) -> Guard:
    prepared = prepare("/v1/chat/completions", body, POLICY, limits=Limits())
    return Guard(POLICY, prepared, id="i", now=anyio.current_time(), clocks=clocks)


async def run(world: World, guard: Guard) -> None:
    """The relay, to its end, in a scope that `Awaits` may cancel."""
    opener: OpenUpstream = world.open
    with anyio.CancelScope() as scope:
        world.awaits.scope = scope
        await relay(opener, guard, world)


# --------------------------------------------------------------------------- endings


async def test_a_whole_answer() -> None:
    """Everything sent, one clean end, one close."""
    world, guard = World([Answer([HIGH, FIN, D])]), guard_for()

    await run(world, guard)

    assert world.sent == HIGH + FIN + D
    assert world.log == ["open", "send", "send", "send", "end", "close"]
    assert (guard.outcome, world.bodies) == ("complete", [OWN])


async def test_cancel_closes_before_the_next_send() -> None:
    """Money first: the upstream is closed before a byte of the deciding event goes out."""
    world, guard = World([Answer([LOW + HIGH, HIGH])]), guard_for()

    await run(world, guard)

    assert world.log == ["open", "close", "send", "end"]
    assert guard.outcome == "aborted"
    assert world.upstreams[0].closes == 1


async def test_a_second_attempt_after_a_refusal() -> None:
    """The first upstream is closed before the second is opened, with the client's own body."""
    refused = Answer([REFUSAL], status=400, content_type="application/json")
    world, guard = World([refused, Answer([LOW, FIN, D])]), guard_for(PLAIN)

    await run(world, guard)

    assert world.log == ["open", "close", "open", "send", "send", "send", "end", "close"]
    assert world.bodies == [PLAIN[:-1] + b',"logprobs":true,"top_logprobs":1}', PLAIN]
    assert (guard.outcome, guard.report().attempts) == ("complete", 2)


async def test_a_refusal_in_the_stream() -> None:
    """The same where HTTP 200 had come first."""
    world = World([Answer([event(json.loads(REFUSAL)), D]), Answer([LOW, FIN, D])])
    guard = guard_for(PLAIN)

    await run(world, guard)

    assert world.log[:3] == ["open", "close", "open"]
    assert world.sent == LOW + FIN + D


@pytest.mark.parametrize(
    ("error", "outcome", "status"),
    [
        (TimeoutError(), "timeout_connect", 504),
        (ConnectionRefusedError(), "upstream_refused", 502),
        (anyio.BrokenResourceError(), "upstream_refused", 502),
    ],
)
async def test_no_connection(error: Exception, outcome: Outcome, status: int) -> None:
    """No upstream, one attempt, an answer that says so."""
    world, guard = World([], open_error=error), guard_for()

    await run(world, guard)

    assert world.refusal is not None
    assert (world.log, world.refusal.status) == (["refuse"], status)
    assert (guard.outcome, len(world.bodies)) == (outcome, 1)


@pytest.mark.parametrize(
    "error", [OSError(), EOFError(), anyio.BrokenResourceError(), anyio.ClosedResourceError()]
)
async def test_a_body_that_breaks_off(error: Exception) -> None:
    """It never looks finished."""
    world, guard = World([Answer([HIGH, error])]), guard_for()

    await run(world, guard)

    assert world.log == ["open", "send", "send", "broken", "close"]
    assert b"upstream_truncated" in world.sent
    assert guard.outcome == "upstream_truncated"


async def test_an_answer_that_may_not_pass() -> None:
    """The guard ends at the head: refused, and closed before."""
    world = World([Answer([b"x"], content_encoding="gzip")])
    policy = Policy(rule=POLICY.rule, fail=CLOSED)
    prepared = prepare("/v1/chat/completions", OWN, policy, limits=Limits())
    guard = Guard(policy, prepared, id="i", now=anyio.current_time())

    await run(world, guard)

    assert world.log == ["open", "close", "refuse"]


# --------------------------------------------------------------------------- clocks


async def test_a_head_that_never_comes() -> None:
    """The first-byte clock runs while the upstream is being opened; one attempt is made."""
    world = World([], open_hangs=True)
    guard = guard_for(clocks=Clocks(first_byte_s=0.02))

    await run(world, guard)

    assert world.refusal is not None
    assert (world.log, world.refusal.status) == (["refuse"], 504)
    assert (guard.outcome, len(world.bodies)) == ("timeout_first_byte", 1)


@pytest.mark.parametrize(
    ("clocks", "outcome"),
    [
        (Clocks(idle_s=0.02), "timeout_idle"),
        (Clocks(idle_s=30.0, lifetime_s=0.02), "timeout_lifetime"),
    ],
)
async def test_a_stream_that_falls_silent(clocks: Clocks, outcome: Outcome) -> None:
    """Closed first, then told, then visibly broken."""
    world, guard = World([Answer([HIGH])], hangs=True), guard_for(clocks=clocks)

    await run(world, guard)

    assert world.log == ["open", "send", "close", "send", "broken"]
    assert outcome.encode() in world.sent
    assert guard.outcome == outcome


# --------------------------------------------------------------------------- faults


@pytest.mark.parametrize("error", [OSError(), anyio.BrokenResourceError(), BrokenPipeError()])
async def test_a_sink_that_fails_is_a_client_that_left(error: Exception) -> None:
    """Upstream closed, nothing raised, nothing sent after."""
    world, guard = World([Answer([HIGH, FIN, D])], sink_error=error), guard_for()

    await run(world, guard)

    assert (world.log, guard.outcome) == (["open", "send", "close"], "client_gone")


async def test_a_sink_that_fails_after_the_cut_changes_no_verdict() -> None:
    """The stream was cut before the client was found gone."""
    world, guard = World([Answer([LOW, HIGH])], sink_error=OSError()), guard_for()

    await run(world, guard)

    assert (world.log, guard.outcome) == (["open", "close", "send"], "aborted")


@pytest.mark.parametrize("error", [OSError(), anyio.ClosedResourceError()])
async def test_a_close_that_fails_is_a_close(error: Exception) -> None:
    """It is as closed as it will get; the answer goes on."""
    world, guard = World([Answer([LOW])], close_error=error), guard_for()

    await run(world, guard)

    assert world.log == ["open", "close", "send", "end"]
    assert guard.outcome == "aborted"


async def test_a_close_that_hangs_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """No close waits for anybody longer than its bound."""
    assert CLOSE_S <= 1.0
    monkeypatch.setattr("streamguard.drive.CLOSE_S", 0.05)
    world, guard = World([Answer([LOW])], close_hangs=True), guard_for()
    before = anyio.current_time()

    with anyio.fail_after(10):
        await run(world, guard)

    assert anyio.current_time() - before >= 0.04
    assert world.log == ["open", "close", "send", "end"]


class _BugError(Exception):
    """What nobody expects."""


@pytest.mark.parametrize("where", ["open", "receive", "send"])
async def test_an_unexpected_exception_is_ours(where: str) -> None:
    """It is raised on, the upstream is closed, and the record does not blame the client."""
    world = World([Answer([_BugError() if where == "receive" else HIGH])])
    world.open_error = _BugError() if where == "open" else None
    world.sink_error = _BugError() if where == "send" else None
    guard = guard_for()

    with pytest.raises(_BugError):
        await run(world, guard)

    assert world.closed
    assert guard.outcome == "internal_error"


# --------------------------------------------------------------------------- cancelled anywhere

Scenario = Callable[[Awaits], tuple[World, Guard]]


def _complete(awaits: Awaits) -> tuple[World, Guard]:
    return World([Answer([HIGH, FIN, D])], awaits), guard_for()


def _aborted(awaits: Awaits) -> tuple[World, Guard]:
    return World([Answer([LOW, FIN])], awaits), guard_for()


def _refused(awaits: Awaits) -> tuple[World, Guard]:
    refused = Answer([REFUSAL], status=400, content_type="application/json")
    return World([refused, Answer([LOW, FIN, D])], awaits), guard_for(PLAIN)


def _broken(awaits: Awaits) -> tuple[World, Guard]:
    return World([Answer([HIGH, OSError()])], awaits), guard_for()


def _rejected(awaits: Awaits) -> tuple[World, Guard]:
    return World([], awaits, open_error=ConnectionRefusedError()), guard_for()


SCENARIOS: dict[str, Scenario] = {
    "complete": _complete,
    "aborted": _aborted,
    "refused": _refused,
    "broken": _broken,
    "rejected": _rejected,
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_cancelled_at_every_await(name: str) -> None:
    """Wherever the relay is cancelled: closed, ended, no task left, and no false outcome."""
    undisturbed = Awaits()
    world, guard = SCENARIOS[name](undisturbed)
    await run(world, guard)
    assert undisturbed.count >= 2
    own = guard.outcome

    for k in range(1, undisturbed.count + 1):
        awaits = Awaits(cancel_at=k)
        world, guard = SCENARIOS[name](awaits)
        async with anyio.create_task_group() as group:
            await _cancelled(group, world, guard)

        assert awaits.count >= k, "the chosen await was reached"
        assert world.closed, awaits.places
        assert all(upstream.closes == 1 for upstream in world.upstreams)
        assert guard.ended
        assert guard.outcome in ("client_gone", own)
        assert guard.next_timer is None


async def _cancelled(group: TaskGroup, world: World, guard: Guard) -> None:
    """Runs the relay in a task of its own; leaving the group shows that none is left over."""
    before = anyio.get_running_tasks()
    done = anyio.Event()

    async def work() -> None:
        await run(world, guard)
        done.set()

    group.start_soon(work)
    with anyio.fail_after(10):
        await done.wait()
    extra = {task.id for task in anyio.get_running_tasks()} - {task.id for task in before}
    assert len(extra) <= 1  # `work` itself may still be on its way out


async def test_a_relay_that_is_cancelled_while_it_waits() -> None:
    """From outside, in mid-stream, with nothing to come: the client has left."""
    world, guard = World([Answer([HIGH])], hangs=True), guard_for()
    async with anyio.create_task_group() as group:
        group.start_soon(run, world, guard)
        with anyio.fail_after(10):
            while "send" not in world.log:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()

    assert world.closed
    assert (guard.outcome, guard.report().sent_bytes) == ("client_gone", len(HIGH))


async def test_a_guard_that_refuses_at_once_opens_nothing() -> None:
    """I15: an upstream receives only what this one request justifies."""
    policy = Policy(rule=POLICY.rule, fail=CLOSED)
    body = PLAIN[:-1] + b',"logprobs":false}'
    prepared = prepare("/v1/chat/completions", body, policy, limits=Limits())
    world, guard = World([]), Guard(policy, prepared, id="i", now=anyio.current_time())

    await run(world, guard)

    assert (world.log, world.bodies) == (["refuse"], [])
