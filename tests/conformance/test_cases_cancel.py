"""Public bug reports, kind F: what an abort and a client that leaves do, in which order.

The order of actions is proved here; that a socket really closes is proved by the tests of the
running command.
"""

from __future__ import annotations

import json

import pytest
from tests.conformance.bench import SURE, prepared, run
from tests.reference.build import C, D, E, L, U, said
from tests.reference.reader import sse_events

from streamguard.core.events import Action, Cancel, End, Send
from streamguard.core.guard import Clocks, Guard
from streamguard.core.specs import Policy, Rule

LOW = said(("a", -2.0), ("b", -3.0), ("c", -0.1))
HIGH = said(("a", -0.1), ("b", -0.1), ("c", -0.1))
DECIDING = C(0, "b", L(E("b", -3.0, 1)))


def phases() -> list[tuple[str, list[Action], Guard]]:
    """A guard in each phase in which a client may leave."""
    found = []
    for name, body in (
        ("waiting", None),
        ("headed", b""),
        ("first bytes", b"da"),
        ("comment", b": ping\n\n"),
        ("in mid-event", HIGH[:150]),
        ("watching", HIGH[: HIGH.index(b'"b"')]),
        ("committed", HIGH[: HIGH.index(b'data: {"id":"x1"', HIGH.index(b'"token":"c"'))]),
        ("no stream", b"<html>"),
    ):
        guard = Guard(SURE, prepared(), id="rid", now=0.0)
        actions = guard.start()
        if body is not None:
            actions += guard.receive_head(200, "text/event-stream", None, 0.0)
            actions += guard.receive_data(body, 0.0)
        assert not guard.ended
        found.append((name, actions, guard))
    return found


@pytest.mark.parametrize("number", range(len(phases())), ids=[name for name, _, _ in phases()])
def test_b66_client_that_leaves_closes_upstream_in_every_phase(number: int) -> None:
    """B66: the first thing that follows is the cancel; nothing more is sent; once."""
    _, _, guard = phases()[number]
    actions = guard.receive_client_gone(1.0)
    assert isinstance(actions[0], Cancel)
    assert [type(action) for action in actions] == [Cancel, End]
    assert guard.outcome == "client_gone"
    assert guard.receive_client_gone(2.0) == guard.receive_data(HIGH, 2.0) == []
    assert guard.receive_eof(2.0) == guard.receive_error("shutdown", 2.0) == []
    assert guard.next_timer is None


def test_b66_abort_cancels_before_anything_else_is_done() -> None:
    """B66, B70: cancel, the deciding event whole, the tail, the end: all from one read."""
    guard = Guard(SURE, prepared(include_usage=True), id="rid", now=0.0)
    actions = guard.start() + guard.receive_head(200, "text/event-stream", None, 0.0)
    before = LOW[: LOW.index(DECIDING)]
    actions = guard.receive_data(before, 0.0)
    assert actions == [Send(before)]
    actions = guard.receive_data(LOW[len(before) :], 0.0)
    assert [type(action) for action in actions] == [Cancel, Send, End]
    (cancel, sent, end) = actions
    assert isinstance(sent, Send)
    assert sent.data.startswith(DECIDING)
    # The tail: the finish, the usage, the end mark; nothing of what the provider sent later.
    events = [event.data for event in sse_events(sent.data.removeprefix(DECIDING))[0]]
    finish, usage, done = events
    assert json.loads(finish)["choices"][0]["finish_reason"] == "content_filter"
    assert json.loads(usage)["usage"]["completion_tokens"] == 2
    assert done == "[DONE]"
    assert (cancel, end) == (Cancel("abort"), End(True))
    assert guard.receive_data(HIGH, 1.0) == []


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_b66_at_most_the_deciding_event_is_paid_for(size: int) -> None:
    """B66: however the bytes are cut, the cancel comes with the read that ends that event."""
    guard = Guard(SURE, prepared(), id="rid", now=0.0)
    guard.receive_head(200, "text/event-stream", None, 0.0)
    needed = LOW.index(DECIDING) + len(DECIDING)
    for at in range(0, len(LOW), size):
        actions = guard.receive_data(LOW[at : at + size], 0.0)
        if any(isinstance(action, Cancel) for action in actions):
            assert at < needed <= at + size
            break
    else:
        pytest.fail("never cancelled")


def test_b68_b69_a_cut_claims_nothing_it_did_not_measure() -> None:
    """B68, B69: the record says that a cancel was sent; it never speaks of saved tokens."""
    found = run(LOW, SURE, prepared(include_usage=True))
    text = json.dumps(found.report.as_dict()).lower()
    assert "saved" not in text
    assert b"saved" not in found.sent.lower()
    assert (found.report.outcome, found.choice.cut) == ("aborted", True)


def test_b68_an_upstream_that_does_not_stop_is_not_listened_to() -> None:
    """B68, B69: whatever still comes after the cancel changes neither stream nor record."""
    found = run(LOW, SURE)
    before = found.report
    assert found.guard.receive_data(C(0, "d", L(E("d", -0.1, 1))) * 9 + D, 5.0) == []
    assert found.guard.receive_eof(6.0, clean=False) == []
    assert found.guard.receive_error("upstream_truncated", 6.0) == []
    assert found.guard.report() == before


@pytest.mark.parametrize("outcome", ["timeout_idle", "timeout_lifetime", "shutdown"])
def test_b70_no_path_waits_for_the_upstream_to_agree(outcome: str) -> None:
    """B70: a time-out or a shutdown cancels first and ends the client's answer at once."""
    guard = Guard(SURE, prepared(), id="rid", now=0.0, clocks=Clocks(idle_s=5, lifetime_s=60))
    guard.receive_head(200, "text/event-stream", None, 0.0)
    guard.receive_data(HIGH[: HIGH.index(b'"b"')], 0.0)
    if outcome == "shutdown":
        actions = guard.receive_error("shutdown", 1.0)
    else:
        if outcome == "timeout_lifetime":
            for second in range(4, 60, 4):
                assert guard.receive_timer(second) == []
                guard.receive_data(C(0, "x", L(E("x", -0.1, 1))), second)
        due = guard.next_timer
        assert due is not None
        assert guard.receive_timer(due - 0.001) == []
        actions = guard.receive_timer(due)
    kinds = [type(action) for action in actions if not isinstance(action, Send)]
    assert kinds == [Cancel, End]
    assert actions[-1] == End(False)
    assert guard.outcome == outcome


def test_b71_an_aborted_stream_leaves_a_full_record() -> None:
    """B71: entries seen, bytes relayed, the time of the verdict; its usage says "estimated"."""
    guard = Guard(SURE, prepared(include_usage=True), id="rid", now=10.0)
    actions = guard.receive_head(200, "text/event-stream", None, 10.1)
    actions += guard.receive_data(LOW, 10.25)
    sent = b"".join(action.data for action in actions if isinstance(action, Send))
    report = guard.report()
    assert (report.outcome, report.tokens_seen, report.sent_bytes) == ("aborted", 2, len(sent))
    assert report.verdict_ms == pytest.approx(250.0)
    assert report.duration_ms == pytest.approx(250.0)
    usage = json.loads(sse_events(sent)[0][-2].data)["usage"]
    assert usage["completion_tokens"] == 2
    assert usage["streamguard_estimated"] is True


def test_b71_an_interrupted_client_leaves_a_full_record_too() -> None:
    """B71: entries and bytes up to the moment the client left."""
    guard = Guard(Policy(mode="observe"), prepared(), id="rid", now=0.0)
    guard.receive_head(200, "text/event-stream", None, 0.0)
    part = HIGH[: HIGH.index(b'data: {"id":"x1"', HIGH.index(b'"token":"b"'))]
    guard.receive_data(part, 1.0)
    guard.receive_client_gone(2.0)
    report = guard.report()
    assert (report.outcome, report.tokens_seen, report.sent_bytes) == ("client_gone", 2, len(part))
    assert report.duration_ms == pytest.approx(2000.0)


def test_b71_usage_already_reported_is_not_invented_again() -> None:
    """B71: without `include_usage` a cut adds no usage; a stream that ended has its own."""
    assert b"estimated" not in run(LOW, SURE, prepared(include_usage=False)).sent
    body = HIGH[: -len(D)] + U(3) + D
    assert run(body, SURE, prepared(include_usage=True)).sent == body


def test_deciding_event_with_a_finish_is_nothing_to_cut() -> None:
    """The verdict falls on the last event: it goes out as it came, and upstream is left alone."""
    body = C(0, "a", L(E("a", -3.0, 1))) + C(0, "b", L(E("b", -3.0, 1)), "length") + D
    found = run(body, Policy(rule=Rule(signal="mean_prob", below=0.5, first=2)))
    assert (found.sent, found.cancelled) == (body, False)
    assert (found.choice.verdict, found.choice.cut) == ("abort", False)
