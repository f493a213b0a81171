"""The Guard, state by state and ending by ending, as playbooks."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.core.playbook import (
    Told,
    again,
    broken,
    cancel,
    data,
    end,
    eof,
    fault,
    gone,
    head,
    opened,
    play,
    refuse,
    send,
    start,
    timer,
)
from tests.reference.build import C, D, E, L, T, U, event, legacy

from streamguard.core import rules
from streamguard.core.capabilities import Limits
from streamguard.core.events import ChoiceReport, Entry, OnAbort, Outcome
from streamguard.core.guard import MAX_REFUSAL_BYTES, MAX_UNPARSABLE, Clocks, Guard
from streamguard.core.request import prepare
from streamguard.core.specs import FailPolicy, Policy, Rule

LOW, HIGH = -3.0, -0.1
RULE = Rule("first_prob", 0.5, 1)
FIRST = Policy(name="p", rule=RULE)
CLOSED = Policy(name="p", rule=RULE, fail=FailPolicy.all("closed"))
PLAIN = b'{"model":"m","messages":[],"stream":true}'
OWN = b'{"model":"m","messages":[],"stream":true,"logprobs":true,"top_logprobs":1}'
OWN_2 = b'{"model":"m","messages":[],"stream":true,"logprobs":true,"top_logprobs":1,"n":2}'
ASKED = PLAIN[:-1] + b',"logprobs":true,"top_logprobs":1}'
ROLE = C(0, {"role": "assistant", "content": ""})
FIN = C(0, {}, None, "stop")
PING = b": ping\n\n"
REFUSAL = {"error": {"message": "'logprobs' is not supported", "param": "logprobs"}}


def make(
    policy: Policy = FIRST, body: bytes = OWN, *, path: str = "/v1/chat/completions", **more: Any
) -> Guard:
    """A guard for a request that asks for logprobs itself, unless `body` says otherwise."""
    prepared = prepare(path, body, policy, limits=Limits())
    return Guard(policy, prepared, id="sg-1", now=0.0, **more)


def tok(logprob: float, i: int = 0, fin: str | None = None) -> bytes:
    """One chat chunk with one token."""
    return C(i, "a", L(E("a", logprob, 1)), fin)


def bare(i: int = 0, fin: str | None = None) -> bytes:
    """The same chunk with its logprobs taken out."""
    return C(i, "a", None, fin)


def facts(score: float | None = math.exp(LOW), **more: Any) -> dict[str, Any]:
    """What our events say of an abort at the first entry."""
    return {
        "id": "sg-1",
        "verdict": "abort",
        "reason": "unsure",
        "policy": "p",
        "signal": "first_prob",
        "score": score,
        "threshold": 0.5,
        "position": 1,
    } | more


def lost(reason: str, position: int) -> dict[str, Any]:
    """What our events say of an abort that no rule decided."""
    return facts(None, reason=reason, position=position, signal=None, threshold=None)


HEAD = {"id": "x1", "object": "chat.completion.chunk", "created": 7, "model": "m"}


def ours(value: dict[str, Any], *, ending: bytes = b"\n") -> bytes:
    """An event of ours."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + ending * 2


def finish(
    i: int = 0,
    *,
    said: dict[str, Any] | None = None,
    reason: str = "content_filter",
    ending: bytes = b"\n",
) -> bytes:
    """The last chunk of a chat choice that was cut."""
    choice = {"index": i, "delta": {}, "logprobs": None, "finish_reason": reason}
    return ours({**HEAD, "choices": [choice], "streamguard": said or facts()}, ending=ending)


def sorry(code: str, text: str, *, ending: bytes = b"\n") -> bytes:
    """The error event of a stream that broke off."""
    error = {"message": text, "type": "streamguard_error", "param": None, "code": code}
    return ours({"error": error}, ending=ending)


UNSURE = {
    "message": "streamguard ended this answer: its early tokens fell below the confidence bound",
    "type": "streamguard_abort",
    "param": None,
    "code": "low_confidence",
}
TRUNCATED = sorry("upstream_truncated", "the upstream broke off before the answer was complete")


def only(guard: Guard) -> ChoiceReport:
    """The report of the only choice."""
    (choice,) = guard.report().choices
    return choice


# --------------------------------------------------------------------------- without action


def test_a_sure_answer_passes_as_it_came() -> None:
    """No action means no difference, and the commit is on record."""
    guard = make()

    assert (
        opened(guard)
        >> data(ROLE) << send(ROLE)
        >> data(tok(HIGH)) << send(tok(HIGH))
        >> data(tok(LOW), FIN) << send(tok(LOW), FIN)
        >> data(D) << send(D)
        >> eof() << end()
    )  # fmt: skip
    assert (guard.outcome, guard.status, only(guard).verdict) == ("complete", "guarded", "commit")
    assert only(guard).cut is False


def test_whole_events_only_while_watching() -> None:
    """Half an event waits: the verdict on it may still change what follows."""
    half = tok(HIGH)
    assert (
        opened(make())
        >> data(half[:30])
        >> data(half[30:-1])
        >> data(half[-1:]) << send(half)
    )  # fmt: skip


def test_reads_as_they_come_after_commit() -> None:
    """Nobody needs the entries any more, so nothing waits."""
    assert (
        opened(make())
        >> data(tok(HIGH), FIN[:10]) << send(tok(HIGH), FIN[:10])
        >> data(FIN[10:20]) << send(FIN[10:20])
    )  # fmt: skip


def test_comments_and_blank_lines_pass_at_once() -> None:
    """A keep-alive is not held back until the next event."""
    assert opened(make()) >> data(PING) << send(PING) >> data(b"\n") << send(b"\n")


def test_observing_sends_everything() -> None:
    """Observe records the abort that enforcing would do, and cuts nothing."""
    guard = make(Policy(mode="observe", rule=RULE))
    body = (ROLE, tok(LOW), tok(LOW), FIN, D)

    assert opened(guard) >> data(*body) << send(*body) >> eof() << end()
    seen = only(guard)
    assert (seen.verdict, seen.reason, seen.position, seen.cut) == ("abort", "unsure", 1, False)
    assert (seen.entries, guard.report().watched, guard.outcome) == (2, "all", "complete")


def test_without_a_rule_nothing_is_decided() -> None:
    """No rule: no verdict, and no reason to look for one."""
    guard = make(Policy())
    assert opened(guard) >> data(tok(LOW), FIN, D) << send(tok(LOW), FIN, D) >> eof() << end()
    assert (only(guard).verdict, only(guard).reason, only(guard).scorable) == (None, None, 1)


def test_what_was_injected_is_taken_out_again() -> None:
    """The value becomes null by span; every other byte stays."""
    guard = make(body=PLAIN)
    assert guard.body == ASKED
    assert (
        opened(guard)
        >> data(ROLE) << send(ROLE)
        >> data(tok(HIGH), tok(LOW)) << send(bare(), bare())
        >> data(FIN, D) << send(FIN, D)
        >> eof() << end()
    )  # fmt: skip
    assert only(guard).entries == 2


# --------------------------------------------------------------------------- the cut


def test_an_abort_cancels_first_and_ends_like_an_answer() -> None:
    """Cancel, the deciding event whole, finish, [DONE], a clean end."""
    guard = make()
    assert (
        opened(guard)
        >> data(ROLE) << send(ROLE)
        >> data(tok(LOW), tok(HIGH)) << cancel() << send(tok(LOW), finish(), D) << end()
    )  # fmt: skip
    seen = only(guard)
    assert (guard.outcome, seen.verdict, seen.cut, seen.entries) == ("aborted", "abort", True, 1)


def test_events_before_the_deciding_one_go_out_before_the_cancel() -> None:
    """They are delivered, not bought back; the order of bytes never changes."""
    rule = Policy(name="p", rule=Rule("min_prob", 0.5, 2))
    said = facts(signal="min_prob", position=2)

    assert (
        opened(make(rule))
        >> data(ROLE, tok(HIGH), tok(LOW))
        << send(ROLE, tok(HIGH)) << cancel() << send(tok(LOW), finish(said=said), D) << end()
    )  # fmt: skip


def test_the_error_style() -> None:
    """One error event, a clean end of the HTTP body, no [DONE]."""
    guard = make(Policy(name="p", rule=RULE, on_abort="error"))
    tail = ours({"error": UNSURE, "streamguard": facts()})

    assert opened(guard) >> data(tok(LOW)) << cancel() << send(tok(LOW), tail) << end()
    assert guard.outcome == "aborted"


def test_the_finish_reason_is_the_policys() -> None:
    """`length` instead of `content_filter` where the policy says so."""
    guard = make(Policy(name="p", rule=RULE, finish_reason="length"))
    assert (
        opened(guard)
        >> data(tok(LOW)) << cancel() << send(tok(LOW), finish(reason="length"), D) << end()
    )  # fmt: skip


def test_completions_are_cut_in_their_own_shape() -> None:
    """A text completion ends with a text completion's chunk."""
    guard = make(
        body=b'{"model":"m","prompt":"","stream":true,"logprobs":1}', path="/v1/completions"
    )
    chunk = T("a", legacy(["a"], [LOW]))
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "content_filter"}
    tail = ours({**HEAD, "object": "text_completion", "choices": [choice], "streamguard": facts()})
    assert opened(guard) >> data(chunk) << cancel() << send(chunk, tail, D) << end()


def test_the_shape_that_arrives_decides_the_tail() -> None:
    """Chat chunks on the completions path are ended like chat chunks."""
    guard = make(
        body=b'{"model":"m","prompt":"","stream":true,"logprobs":1}', path="/v1/completions"
    )
    assert opened(guard) >> data(tok(LOW)) << cancel() << send(tok(LOW), finish(), D) << end()
    assert guard.report().dialect == "chat"


@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_the_tail_uses_the_streams_line_ends(ending: bytes) -> None:
    """A CRLF stream ends in CRLF, a CR stream in CR."""
    low = tok(LOW).replace(b"\n", ending)
    done = D.replace(b"\n", ending)
    assert (
        opened(make())
        >> data(low, b": x") << cancel() << send(low, finish(ending=ending), done) << end()
    )  # fmt: skip


def test_a_crlf_that_is_cut_between_reads_is_one_line_end() -> None:
    """The event waits for the LF that belongs to it, and the tail stays CRLF."""
    low = tok(LOW).replace(b"\n", b"\r\n")
    done = D.replace(b"\n", b"\r\n")
    assert (
        opened(make())
        >> data(low[:-1])
        >> data(low[-1:]) << cancel() << send(low, finish(ending=b"\r\n"), done) << end()
    )  # fmt: skip


def test_a_failure_uses_the_streams_line_ends() -> None:
    """An error event of ours follows the stream's own line ends too."""
    high = tok(HIGH).replace(b"\n", b"\r\n")
    assert (
        opened(make(Policy(rule=Rule("first_prob", 0.5, 9))))
        >> data(high) << send(high)
        >> eof() << send(TRUNCATED.replace(b"\n", b"\r\n")) << broken()
    )  # fmt: skip


def test_a_deciding_event_that_carries_the_finish_is_not_cut() -> None:
    """There is nothing left to stop: it goes out as it came, the verdict stands in the record."""
    guard = make()
    last = tok(LOW, fin="stop")

    assert opened(guard) >> data(last, D) << send(last, D) >> eof() << end()
    assert (guard.outcome, only(guard).verdict, only(guard).cut) == ("complete", "abort", False)


def test_later_entries_of_the_deciding_event_are_not_judged() -> None:
    """Verdict on the entry, cut on the event."""
    guard = make(Policy(name="p", rule=Rule("min_prob", 0.5, 3, start=1)))
    several = C(0, "abc", L(E("a", HIGH, 1), E("b", LOW, 1), E("c", HIGH, 1)))
    said = facts(signal="min_prob", position=2)

    assert (
        opened(guard)
        >> data(several) << cancel() << send(several, finish(said=said), D) << end()
    )  # fmt: skip
    assert (only(guard).position, only(guard).entries) == (2, 3)


def test_an_answer_shorter_than_first_is_looked_at_once_at_its_end() -> None:
    """Its verdict is on record; nothing is cut any more."""
    guard = make(Policy(rule=Rule("mean_prob", 0.5, 8)))
    body = (tok(LOW), tok(LOW), FIN, D)

    assert opened(guard) >> data(*body) << send(*body) >> eof() << end()
    assert (only(guard).verdict, only(guard).position, only(guard).cut) == ("abort", 2, False)


def test_the_usage_chunk_a_client_asked_for() -> None:
    """The provider's own never comes after a cut: ours counts the entries, and says so."""
    guard = make(body=OWN[:-1] + b',"stream_options":{"include_usage":true}}')
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "total_tokens": 4,
        "streamguard_estimated": True,
    }
    value = {**HEAD, "choices": [], "usage": usage}
    low = event({**json.loads(tok(LOW)[6:]), "usage": {"prompt_tokens": 3}})

    assert (
        opened(guard) >> data(low) << cancel() << send(low, finish(), ours(value), D) << end()
    )  # fmt: skip


def test_an_injected_stream_is_cut_without_its_logprobs() -> None:
    """The deciding event goes out whole, apart from what the client never asked for."""
    assert (
        opened(make(body=PLAIN))
        >> data(tok(LOW)) << cancel() << send(bare(), finish(), D) << end()
    )  # fmt: skip


def test_nan_decides_nothing_and_hides_nothing() -> None:
    """A NaN entry is counted and skipped; the tail still speaks like the stream."""
    guard = make(Policy(name="p", rule=Rule("first_prob", 0.5, 1)))
    nan = C(0, "a", L(E("a", math.nan, 1)))
    both = C(0, "ab", L(E("a", math.nan, 1), E("b", LOW, 1)))

    assert (
        opened(guard)
        >> data(nan) << send(nan)
        >> data(both) << cancel() << send(both, finish(said=facts(position=3)), D) << end()
    )  # fmt: skip
    assert (only(guard).entries, only(guard).unscorable) == (3, 2)


# --------------------------------------------------------------------------- several choices


def two(first: float | None, second: float | None, fins: tuple[Any, Any] = (None, None)) -> bytes:
    """One event for two choices."""
    choices = [
        {
            "index": i,
            "delta": {"content": "a"},
            "logprobs": None if logprob is None else L(E("a", logprob, 1)),
            "finish_reason": fin,
        }
        for i, (logprob, fin) in enumerate(zip((first, second), fins, strict=True))
    ]
    return event({**HEAD, "choices": choices})


def without_first(chunk: bytes) -> bytes:
    """`two(...)` after choice 0 was taken out of it."""
    value = json.loads(chunk[6:])
    return event({**value, "choices": value["choices"][1:]})


def test_a_dead_choice_is_finished_and_silenced() -> None:
    """The other one runs on, and is the only one heard."""
    guard = make(body=OWN_2)
    assert (
        opened(guard)
        >> data(tok(HIGH, 1)) << send(tok(HIGH, 1))
        >> data(tok(LOW, 0)) << send(tok(LOW, 0), finish(0))
        >> data(tok(LOW, 0), C(0, {}, None, "length"))
        >> data(tok(LOW, 1)) << send(tok(LOW, 1))
    )  # fmt: skip
    assert [choice.cut for choice in guard.report().choices] == [True, False]


def test_a_dead_choice_stays_silent_after_the_other_has_committed() -> None:
    """Committing one choice does not give the other its voice back."""
    assert (
        opened(make(body=OWN_2))
        >> data(tok(LOW, 0)) << send(tok(LOW, 0), finish(0))
        >> data(tok(HIGH, 1)) << send(tok(HIGH, 1))
        >> data(tok(HIGH, 0))
        >> data(tok(HIGH, 1)) << send(tok(HIGH, 1))
    )  # fmt: skip


def test_an_event_that_speaks_for_both() -> None:
    """The dead choice is taken out of it, the living one keeps its bytes."""
    both = two(LOW, HIGH)
    assert (
        opened(make(body=OWN_2))
        >> data(tok(LOW, 0)) << send(tok(LOW, 0), finish(0))
        >> data(both) << send(without_first(both))
    )  # fmt: skip


def test_cancel_when_all_are_dead() -> None:
    """The last choice to die ends the stream."""
    guard = make(body=OWN_2)
    assert (
        opened(guard)
        >> data(tok(LOW, 1)) << send(tok(LOW, 1), finish(1))
        >> data(tok(LOW, 0)) << cancel() << send(tok(LOW, 0), finish(0), D) << end()
    )  # fmt: skip
    assert guard.outcome == "aborted"


def test_both_die_in_one_event() -> None:
    """Two verdicts, two finishes, one cancel."""
    both = two(LOW, LOW)
    assert (
        opened(make(body=OWN_2))
        >> data(both) << cancel() << send(both, finish(0), finish(1), D) << end()
    )  # fmt: skip


def test_cancel_when_the_living_one_has_finished() -> None:
    """Nothing that anybody wants is generated any more."""
    guard = make(body=OWN_2)
    last = C(1, {}, None, "stop")
    assert (
        opened(guard)
        >> data(tok(LOW, 0)) << send(tok(LOW, 0), finish(0))
        >> data(tok(HIGH, 1)) << send(tok(HIGH, 1))
        >> data(last) << cancel() << send(last, D) << end()
    )  # fmt: skip
    assert guard.outcome == "aborted"


def test_the_error_style_spares_a_choice_that_finished() -> None:
    """An error event would condemn an answer that is whole: the dead one is finished instead."""
    guard = make(Policy(name="p", rule=RULE, on_abort="error"), OWN_2)
    assert (
        opened(guard)
        >> data(tok(HIGH, 1, "stop")) << send(tok(HIGH, 1, "stop"))
        >> data(tok(LOW, 0)) << cancel() << send(tok(LOW, 0), finish(0), D) << end()
    )  # fmt: skip


def test_the_error_style_with_both_dead() -> None:
    """One error event once nobody is left."""
    guard = make(Policy(name="p", rule=RULE, on_abort="error"), OWN_2)
    assert (
        opened(guard)
        >> data(tok(LOW, 0)) << send(tok(LOW, 0), finish(0))
        >> data(tok(LOW, 1))
        << cancel() << send(tok(LOW, 1), ours({"error": UNSURE, "streamguard": facts()})) << end()
    )  # fmt: skip


def test_any_dead_choice_may_end_the_stream() -> None:
    """With `dead = any` the first abort cancels, and no choice that was heard is left open."""
    guard = make(Policy(name="p", rule=RULE, dead="any"), OWN_2)
    assert (
        opened(guard)
        >> data(tok(HIGH, 1)) << send(tok(HIGH, 1))
        >> data(tok(LOW, 0)) << cancel() << send(tok(LOW, 0), finish(0), finish(1), D) << end()
    )  # fmt: skip
    assert [choice.verdict for choice in guard.report().choices] == ["abort", "commit"]
    assert [choice.cut for choice in guard.report().choices] == [True, True]


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_a_refused_request_is_sent_once_more_without_our_fields(status: int) -> None:
    """Close, open again with the client's own body; the second answer passes as it comes."""
    guard = make(body=PLAIN)
    body = json.dumps(REFUSAL).encode()

    assert (
        play(guard)
        >> start()
        >> head(status, "application/json")
        >> data(body[:20])
        >> data(body[20:])
        >> eof() << cancel("refused") << again(PLAIN)
    )  # fmt: skip
    assert (guard.refused, guard.status, guard.body) == (True, "refused", PLAIN)
    assert (
        play(guard)
        >> head()
        >> data(tok(LOW), FIN[:9]) << send(tok(LOW), FIN[:9])
        >> data(FIN[9:], D) << send(FIN[9:], D)
        >> eof() << end()
    )  # fmt: skip
    report = guard.report()
    assert (report.outcome, report.attempts, report.status) == ("complete", 2, "refused")


def test_a_refusal_as_the_first_event() -> None:
    """HTTP 200 does not make a yes of it; what was held before it is forgotten."""
    assert (
        opened(make(body=PLAIN))
        >> data(PING)
        >> data(event(REFUSAL), D) << cancel("refused") << again(PLAIN)
    )  # fmt: skip


@pytest.mark.parametrize("rest", [b"", b"data: [DO", D, D[:-1], b"\r", b"data"])
def test_nothing_of_a_refused_stream_lives_on_in_the_second(rest: bytes) -> None:
    """However the first attempt broke off, the second is read from its own first byte."""
    guard = make(body=PLAIN)
    assert (
        opened(guard) >> data(event(REFUSAL), rest) << cancel("refused") << again(PLAIN)
    )  # fmt: skip
    assert (
        play(guard)
        >> head()
        >> data(b"\xef\xbb\xbf")
        >> data(b"\n", PING, D) << send(b"\xef\xbb\xbf\n", PING, D)
        >> eof() << end()
    )  # fmt: skip
    assert (guard.outcome, guard.report().events) == ("complete", 1)


def test_a_refusal_as_one_json_answer_with_status_200() -> None:
    """It is read before anything of it is sent."""
    body = json.dumps(REFUSAL).encode()
    assert (
        play(make(body=PLAIN))
        >> start()
        >> head(200, "application/json")
        >> data(body)
        >> eof() << cancel("refused") << again(PLAIN)
    )  # fmt: skip


def test_comments_wait_while_a_refusal_may_come() -> None:
    """A status that went out can't be taken back; the first event releases them."""
    assert (
        opened(make(body=PLAIN))
        >> data(PING)
        >> data(PING)
        >> data(ROLE) << send(PING, PING, ROLE)
        >> data(PING) << send(PING)
    )  # fmt: skip


def test_comments_do_not_wait_without_end() -> None:
    """Too many of them go out, and then a refusal is the client's to see: no status is left."""
    many = PING * (MAX_REFUSAL_BYTES // len(PING) + 1)
    guard = make(body=PLAIN)
    refused = event(REFUSAL)
    assert (
        opened(guard)
        >> data(many) << send(many)
        >> data(PING) << send(PING)
        >> data(refused, D) << send(refused, D)
        >> eof() << end()
    )  # fmt: skip
    assert (guard.outcome, guard.report().attempts) == ("upstream_error", 1)


def test_comments_pass_where_nothing_was_injected() -> None:
    """Without fields of ours there is no refusal to wait for."""
    assert opened(make()) >> data(PING) << send(PING)


def test_a_second_refusal_is_final() -> None:
    """One second attempt: its error is the client's own."""
    guard = make(body=PLAIN)
    body = json.dumps(REFUSAL).encode()
    assert (
        play(guard)
        >> start()
        >> head(400, "application/json")
        >> data(body)
        >> eof() << cancel("refused") << again(PLAIN)
        >> head(400, "application/json")
        >> data(body) << send(body)
        >> eof() << end()
    )  # fmt: skip
    assert guard.report().attempts == 2


def test_an_error_that_is_no_refusal_is_held_and_passed_on() -> None:
    """Released whole once it is known not to be about logprobs, byte for byte."""
    guard = make(body=PLAIN)
    body = b'{"error":{"message":"no such model","param":"model"}}'
    assert (
        play(guard)
        >> start()
        >> head(404, "application/json")
        >> data(body)
        >> eof() << send(body) << end()
    )  # fmt: skip
    assert (guard.outcome, guard.opaque_reason, guard.verbatim) == (
        "complete",
        "error_status",
        True,
    )


def test_a_large_error_is_no_refusal() -> None:
    """Held up to a bound, then passed on."""
    body = b'{"error":"logprobs' + b" " * MAX_REFUSAL_BYTES
    assert (
        play(make(body=PLAIN))
        >> start()
        >> head(400, "application/json")
        >> data(body) << send(body)
        >> data(b'"}') << send(b'"}')
        >> eof() << end()
    )  # fmt: skip


def test_a_refusal_of_the_clients_own_fields_is_the_clients() -> None:
    """What we did not ask for we do not mend."""
    guard = make()
    body = json.dumps(REFUSAL).encode()
    assert (
        play(guard)
        >> start()
        >> head(400, "application/json")
        >> data(body) << send(body)
        >> eof() << end()
    )  # fmt: skip
    assert guard.status == "opaque"
    first = event(REFUSAL)
    other = make()
    assert opened(other) >> data(first, D) << send(first, D) >> eof() << end()
    assert other.outcome == "upstream_error"


def test_refused_pass() -> None:
    """The refusal itself is the answer, in every form."""
    policy = Policy(rule=RULE, refused="pass")
    body = json.dumps(REFUSAL).encode()
    guard = make(policy, PLAIN)
    assert (
        play(guard)
        >> start()
        >> head(400, "application/json")
        >> data(body)
        >> eof() << send(body) << end()
    )  # fmt: skip
    assert guard.status == "refused"
    stream = (event(REFUSAL), D)
    guard = make(policy, PLAIN)
    assert opened(guard) >> data(PING, *stream) << send(PING, *stream) >> eof() << end()
    assert (guard.status, guard.outcome) == ("refused", "upstream_error")


@pytest.mark.parametrize(
    "policy",
    [
        Policy(rule=RULE, refused="reject"),
        Policy(rule=RULE, fail=FailPolicy(unwatchable="closed")),
        Policy(rule=RULE, refused="pass", fail=FailPolicy(unwatchable="closed")),
    ],
)
def test_refused_reject(policy: Policy) -> None:
    """422 instead of an unwatched answer; SDKs are told not to retry."""
    guard = make(policy, PLAIN)
    assert (
        play(guard)
        >> start()
        >> head(400, "application/json")
        >> data(json.dumps(REFUSAL).encode())
        >> eof() << refuse(422, "refused")
    )  # fmt: skip
    assert (guard.ended, guard.outcome, guard.report().http_status) == (True, "complete", 422)
    assert (
        opened(make(policy, PLAIN))
        >> data(event(REFUSAL)) << cancel("refused") << refuse(422, "refused")
    )  # fmt: skip


def test_a_remembered_refusal_is_not_asked_for_again() -> None:
    """The first attempt already goes without our fields."""
    guard = make(body=PLAIN, known_refused=True)
    assert (guard.body, guard.status) == (PLAIN, "refused")
    assert (
        opened(guard)
        >> data(tok(LOW), FIN, D) << send(tok(LOW), FIN, D)
        >> eof() << end()
    )  # fmt: skip
    assert guard.report().attempts == 1


def test_a_remembered_refusal_is_rejected_where_the_policy_says_so() -> None:
    """Before anything is sent upstream."""
    for policy in (Policy(rule=RULE, refused="reject"), CLOSED):
        assert play(make(policy, PLAIN, known_refused=True)) >> start() << refuse(422, "refused")


def test_a_remembered_refusal_does_not_touch_what_a_client_asks_itself() -> None:
    """The memory is about our fields."""
    guard = make(known_refused=True)
    assert opened(guard) >> data(tok(LOW)) << cancel() << send(tok(LOW), finish(), D) << end()


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/chat/completions", PLAIN[:-1] + b',"logprobs":false}', "logprobs_off"),
        ("/v1/completions", b'{"stream":true,"prompt":"","echo":true}', "echo"),
    ],
)
def test_what_can_not_be_watched(path: str, body: bytes, reason: str) -> None:
    """Open: passed on, and said so. Closed: 422 before anything is sent upstream."""
    guard = make(body=body, path=path)
    assert opened(guard) >> data(tok(LOW), D) << send(tok(LOW), D) >> eof() << end()
    assert (guard.status, guard.opaque_reason) == ("opaque", reason)
    assert play(make(CLOSED, body, path=path)) >> start() << refuse(422, reason)


def test_observing_refuses_nothing() -> None:
    """Closed causes end nothing while observing."""
    policy = Policy(mode="observe", rule=RULE, fail=FailPolicy.all("closed"))
    guard = make(policy, PLAIN[:-1] + b',"logprobs":false}')
    assert opened(guard) >> data(tok(LOW), D) << send(tok(LOW), D) >> eof() << end()


# --------------------------------------------------------------------------- no event stream


def test_an_encoded_answer() -> None:
    """Compressed although identity was asked: passed on unread, or refused."""
    guard = make()
    assert (
        play(guard)
        >> start()
        >> head(200, "text/event-stream", "gzip")
        >> data(b"\x1f\x8bxyz") << send(b"\x1f\x8bxyz")
        >> eof() << end()
    )  # fmt: skip
    assert (guard.opaque_reason, guard.outcome, guard.verbatim) == ("encoded", "complete", True)
    closed = make(CLOSED)
    assert (
        play(closed)
        >> start()
        >> head(200, "text/event-stream", " GZIP") << cancel("encoded") << refuse(502, "encoded")
    )  # fmt: skip
    assert closed.outcome == "upstream_error"


def test_identity_is_no_encoding() -> None:
    """The word for none, in any case."""
    guard = make()
    assert (
        play(guard)
        >> start()
        >> head(200, "text/event-stream", "Identity")
        >> data(tok(LOW)) << cancel() << send(tok(LOW), finish(), D) << end()
    )  # fmt: skip


@pytest.mark.parametrize("body", [b'{"choices":[]}', b"[1]", b"<html>", b"upstream says hello"])
def test_a_body_that_is_no_event_stream(body: bytes) -> None:
    """Passed on as it is, or, where nothing may pass unwatched, refused."""
    guard = make()
    assert (
        play(guard)
        >> start()
        >> head(200, "application/json")
        >> data(body) << send(body)
        >> eof() << end()
    )  # fmt: skip
    assert (guard.opaque_reason, guard.outcome, guard.verbatim) == ("not_sse", "complete", True)
    assert (
        play(make(CLOSED))
        >> start()
        >> head(200, "application/json")
        >> data(body) << cancel("not_sse") << refuse(422, "not_sse")
    )  # fmt: skip


def test_a_plain_answer_to_a_question_of_ours() -> None:
    """It may be a refusal, so it is held until its end; then it passes, or is refused."""
    body = b'{"choices":[{"message":{"content":"hi"}}]}'
    guard = make(body=PLAIN)
    assert (
        play(guard)
        >> start()
        >> head(200, "application/json")
        >> data(body[:9])
        >> data(body[9:])
        >> eof() << send(body) << end()
    )  # fmt: skip
    assert guard.opaque_reason == "not_sse"
    assert (
        play(make(CLOSED, PLAIN))
        >> start()
        >> head(200, "application/json")
        >> data(body)
        >> eof() << refuse(422, "not_sse")
    )  # fmt: skip


def test_a_large_plain_answer_is_not_let_pass_where_closed() -> None:
    """Too large to be a refusal is not small enough to pass unwatched."""
    body = b'{"choices":["' + b"x" * MAX_REFUSAL_BYTES
    assert (
        play(make(body=PLAIN))
        >> start()
        >> head(200, "application/json")
        >> data(body) << send(body)
    )  # fmt: skip
    assert (
        play(make(CLOSED, PLAIN))
        >> start()
        >> head(200, "application/json")
        >> data(body) << cancel("not_sse") << refuse(422, "not_sse")
    )  # fmt: skip


def test_half_a_plain_answer_is_not_let_pass_where_closed() -> None:
    """An unwatched answer that broke off is still an unwatched answer."""
    assert (
        play(make(CLOSED, PLAIN))
        >> start()
        >> head(200, "application/json")
        >> data(b'{"choices":[{"message":{"content":"hi')
        >> eof(clean=False) << refuse(502, "upstream_truncated", retry=True)
    )  # fmt: skip


@pytest.mark.parametrize("status", [201, 401, 404, 429, 500, 503])
def test_an_error_answer_is_passed_on_verbatim(status: int) -> None:
    """Whatever it is, closed or not: it is no answer that could be doubted."""
    for policy in (FIRST, CLOSED):
        guard = make(policy)
        body = b"data: not for us\n\n{"
        assert (
            play(guard)
            >> start()
            >> head(status, "application/json")
            >> data(body) << send(body)
            >> data(b"}") << send(b"}")
            >> eof() << end()
        )  # fmt: skip
        assert (guard.outcome, guard.opaque_reason) == ("complete", "error_status")
        assert (guard.verbatim, guard.report().http_status) == (True, status)


def test_a_wrong_content_type_hides_no_stream() -> None:
    """Labels lie: the first bytes decide, however they are cut."""
    for first, rest in ((b"", tok(LOW)), (b"d", tok(LOW)[1:]), (b"dat", tok(LOW)[3:])):
        assert (
            play(make())
            >> start()
            >> head(200, "application/json")
            >> data(first)
            >> data(rest) << cancel() << send(tok(LOW), finish(), D) << end()
        )  # fmt: skip


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
def test_a_byte_order_mark_that_is_cut_between_reads(content_type: str) -> None:
    """Nothing is decided before it is whole."""
    for cut in (1, 2, 3):
        mark = b"\xef\xbb\xbf"
        assert (
            play(make())
            >> start()
            >> head(200, content_type)
            >> data(mark[:cut])
            >> data(mark[cut:], tok(LOW))
            << send(mark) << cancel() << send(tok(LOW), finish(), D) << end()
        )  # fmt: skip


# --------------------------------------------------------------------------- what can't be read


def test_an_oversize_event_open() -> None:
    """Passed on unread from there; the stream is opaque."""
    guard = make(max_event_bytes=400)
    large = b"data: " + b"x" * 500

    assert (
        opened(guard)
        >> data(ROLE) << send(ROLE)
        >> data(large) << send(large)
        >> data(b"y\n\n", tok(LOW)) << send(b"y\n\n", tok(LOW))
        >> eof() << end()
    )  # fmt: skip
    assert (guard.opaque_reason, guard.status) == ("oversize", "opaque")


def test_an_oversize_event_closed() -> None:
    """Cut before it; what came before is delivered."""
    late = Policy(name="p", rule=Rule("first_prob", 0.5, 9), fail=CLOSED.fail)
    guard = make(late, max_event_bytes=400)
    assert (
        opened(guard)
        >> data(tok(HIGH)) << send(tok(HIGH))
        >> data(b"data: " + b"x" * 500)
        << cancel() << send(finish(said=lost("oversize", 1)), D) << end()
    )  # fmt: skip
    assert (only(guard).reason, only(guard).cut) == ("oversize", True)


def test_a_stream_that_was_changed_is_not_verbatim() -> None:
    """Injected spans were taken out before it went opaque: its length does not hold."""
    guard = make(body=PLAIN, max_event_bytes=400)
    large = b"data: " + b"x" * 500
    assert opened(guard) >> data(tok(HIGH), large) << send(bare(), large)
    assert (guard.opaque_reason, guard.verbatim) == ("oversize", False)


def test_an_oversize_event_after_commit() -> None:
    """Nobody reads any more, so nobody minds."""
    guard = make(CLOSED, max_event_bytes=400)
    large = b"data: " + b"x" * 500
    assert (
        opened(guard)
        >> data(tok(HIGH)) << send(tok(HIGH))
        >> data(large) << send(large)
        >> data(D) << send(D)
    )  # fmt: skip
    assert not guard.ended


def test_comments_are_never_oversize_together() -> None:
    """The limit is about one event, not about how much came in one read."""
    guard = make(max_event_bytes=400)
    assert opened(guard) >> data(PING * 100) << send(PING * 100)
    assert guard.opaque_reason is None


GARBAGE = b"data: {no json\n\n"


def test_unparsable_events_open() -> None:
    """Passed on and counted."""
    guard = make()
    body = (GARBAGE * 5, tok(HIGH), FIN, D)
    assert opened(guard) >> data(*body) << send(*body) >> eof() << end()
    assert (guard.report().unparsable, guard.outcome) == (5, "complete")


def test_unparsable_events_closed() -> None:
    """A few are taken, then the stream is ended."""
    guard = make(CLOSED)
    few = GARBAGE * (MAX_UNPARSABLE - 1)
    tail = {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "content_filter"}],
        "streamguard": lost("unparsable", 0),
    }
    assert (
        opened(guard)
        >> data(few) << send(few)
        >> data(GARBAGE) << cancel() << send(GARBAGE, ours(tail), D) << end()
    )  # fmt: skip
    assert (guard.outcome, only(guard).reason) == ("aborted", "unparsable")


def test_a_choice_that_is_dead_already_is_not_finished_twice() -> None:
    """A cause that ends the whole stream finishes only what was still running."""
    guard = make(Policy(name="p", rule=RULE, fail=FailPolicy(unparsable="closed")), OWN_2)
    assert (
        opened(guard)
        >> data(tok(LOW, 0)) << send(tok(LOW, 0), finish(0))
        >> data(bare(1), GARBAGE * 2) << send(bare(1), GARBAGE * 2)
        >> data(GARBAGE)
        << cancel() << send(GARBAGE, finish(1, said=lost("unparsable", 0)), D) << end()
    )  # fmt: skip


class _RaisingError(Exception):
    """Something a rule may raise."""


@pytest.fixture(name="raising")
def _raising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule fails at its first entry."""

    def push(self: rules.Evaluation, entry: Entry, position: int) -> None:
        raise _RaisingError

    monkeypatch.setattr(rules.Evaluation, "push", push)


@pytest.mark.usefixtures("raising")
def test_a_rule_that_raises_open() -> None:
    """Contained, counted, and the stream goes on unjudged."""
    guard = make()
    body = (tok(LOW), tok(LOW), FIN, D)
    assert opened(guard) >> data(*body) << send(*body) >> eof() << end()
    assert (guard.rule_errors, only(guard).verdict, guard.outcome) == (1, None, "complete")


@pytest.mark.usefixtures("raising")
def test_a_rule_that_raises_closed() -> None:
    """The answer is cut, with the reason."""
    guard = make(CLOSED)
    said = lost("rule_error", 1)
    assert (
        opened(guard)
        >> data(tok(HIGH)) << cancel() << send(tok(HIGH), finish(said=said), D) << end()
    )  # fmt: skip
    assert only(guard).reason == "rule_error"


def test_no_signal_open() -> None:
    """Asked, nothing came: its own status, never an abort."""
    guard = make()
    body = (ROLE, bare(), bare(), FIN, D)
    assert opened(guard) >> data(*body) << send(*body) >> eof() << end()
    assert (guard.report().status, guard.status) == ("unscored", "guarded")
    assert (only(guard).verdict, only(guard).reason) == (None, "no_signal")


def test_no_signal_closed() -> None:
    """Cut where the rule would have looked last: that much text came without evidence."""
    guard = make(Policy(name="p", rule=Rule("mean_prob", 0.5, 2), fail=CLOSED.fail))
    said = lost("no_signal", 0)
    assert (
        opened(guard)
        >> data(ROLE, bare()) << send(ROLE, bare())
        >> data(bare()) << cancel() << send(bare(), finish(said=said), D) << end()
    )  # fmt: skip


# --------------------------------------------------------------------------- ends


def test_truncated_before_the_first_byte() -> None:
    """A status can still be chosen, so it is."""
    guard = make()
    assert opened(guard) >> eof() << refuse(502, "upstream_truncated", retry=True)
    assert guard.outcome == "upstream_truncated"


@pytest.mark.parametrize("clean", [True, False])
def test_truncated_in_mid_stream(clean: bool) -> None:
    """An error event at the boundary, a broken end, no [DONE], however the body was framed."""
    guard = make(Policy(rule=Rule("first_prob", 0.5, 9)))
    assert (
        opened(guard)
        >> data(tok(HIGH)) << send(tok(HIGH))
        >> eof(clean=clean) << send(TRUNCATED) << broken()
    )  # fmt: skip
    assert (guard.outcome, only(guard).verdict) == ("upstream_truncated", None)


def test_truncated_in_mid_event() -> None:
    """Half an event that was never sent is no boundary problem: ours follows the last whole one."""
    assert (
        opened(make(Policy(rule=Rule("first_prob", 0.5, 9))))
        >> data(tok(HIGH), FIN[:30]) << send(tok(HIGH))
        >> eof(clean=False) << send(TRUNCATED) << broken()
    )  # fmt: skip


def test_truncated_in_mid_event_after_commit() -> None:
    """The client has half an event: nothing of ours may follow it."""
    assert (
        opened(make())
        >> data(tok(HIGH), b"data: {") << send(tok(HIGH), b"data: {")
        >> eof(clean=False) << broken()
    )  # fmt: skip


def test_truncated_at_a_boundary_after_commit() -> None:
    """The client stands between events: it is told."""
    assert (
        opened(make())
        >> data(tok(HIGH)) << send(tok(HIGH))
        >> eof(clean=False) << send(TRUNCATED) << broken()
    )  # fmt: skip


def test_one_choice_of_two_is_no_whole_answer() -> None:
    """A finish for every choice seen, or it broke off."""
    guard = make(body=OWN_2)
    body = (tok(HIGH, 0, "stop"), tok(HIGH, 1))
    assert opened(guard) >> data(*body) << send(*body) >> eof() << send(TRUNCATED) << broken()


def test_comments_alone_are_no_answer() -> None:
    """Keep-alives and then nothing: broken off."""
    assert opened(make()) >> data(PING) << send(PING) >> eof() << send(TRUNCATED) << broken()


def test_a_truncated_body_of_another_kind() -> None:
    """No event of ours goes into what is no event stream."""
    guard = make()
    assert (
        play(guard)
        >> start()
        >> head(500, "text/plain")
        >> data(b"half") << send(b"half")
        >> eof(clean=False) << broken()
    )  # fmt: skip
    assert guard.outcome == "upstream_truncated"


@pytest.mark.parametrize("cut", [1, 2])
def test_an_unterminated_end_mark(cut: int) -> None:
    """[DONE] without its blank line, or without any line end, is an end."""
    guard = make()
    done = D[:-cut]
    assert (
        opened(guard)
        >> data(tok(HIGH, fin="stop")) << send(tok(HIGH, fin="stop"))
        >> data(done) << send(done)
        >> eof() << end()
    )  # fmt: skip
    assert guard.outcome == "complete"


def test_an_unterminated_last_event() -> None:
    """It is evidence that was paid for: judged, passed on, nothing of ours behind it."""
    guard = make()
    last = tok(LOW, fin="stop")[:-1]
    assert opened(guard) >> data(last) >> eof() << send(last) << end()
    assert (only(guard).verdict, only(guard).cut, guard.outcome) == ("abort", False, "complete")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("missing", [1, 2])
def test_an_unterminated_event_without_a_finish(missing: int, clean: bool) -> None:
    """It is whole if it can be read: it goes out, is ended for the client, and ours follows."""
    guard = make()
    last = tok(LOW)[:-missing]
    assert (
        opened(guard)
        >> data(last)
        >> eof(clean=clean) << send(last, b"\n\n", TRUNCATED) << broken()
    )  # fmt: skip
    assert (guard.outcome, only(guard).entries) == ("upstream_truncated", 1)


def test_half_an_event_at_a_clean_end() -> None:
    """What can't be read goes out as it came, without an event of ours glued to it."""
    half = tok(HIGH)[:40]
    assert (
        opened(make())
        >> data(ROLE, half) << send(ROLE)
        >> eof() << send(half) << broken()
    )  # fmt: skip


def test_a_missing_end_mark() -> None:
    """A finish for every choice is a whole answer, and no [DONE] is invented."""
    guard = make()
    body = (tok(HIGH), FIN)
    assert opened(guard) >> data(*body) << send(*body) >> eof() << end()
    assert guard.outcome == "complete"


def test_an_end_mark_without_a_finish() -> None:
    """An interrupted llama-cpp-python stream ends so: the server says that it is over."""
    guard = make(Policy(rule=Rule("mean_prob", 0.5, 9)))
    assert opened(guard) >> data(tok(LOW), D) << send(tok(LOW), D) >> eof() << end()
    assert (guard.outcome, only(guard).verdict) == ("complete", "abort")


def test_a_usage_chunk_behind_the_finish() -> None:
    """A chunk without choices is no news about any of them."""
    body = (tok(HIGH), FIN, U(1), D)
    guard = make()
    assert opened(guard) >> data(*body) << send(*body) >> eof() << end()
    assert guard.report().events == 4


def test_an_error_object_as_the_first_event() -> None:
    """Passed on: the provider's own words, and its own end."""
    guard = make(body=PLAIN)
    failed = event({"error": {"message": "overloaded"}})
    assert opened(guard) >> data(failed) << send(failed) >> eof() << end()
    assert guard.outcome == "upstream_error"


def test_an_error_object_in_mid_stream() -> None:
    """Passed on; the stream is whole in its way."""
    guard = make(Policy(rule=Rule("mean_prob", 0.5, 9)))
    failed = event({"object": "error", "message": "engine died"})
    assert (
        opened(guard)
        >> data(tok(LOW), failed) << send(tok(LOW), failed)
        >> eof(clean=False) << broken()
    )  # fmt: skip
    assert (guard.outcome, only(guard).verdict) == ("upstream_error", "abort")


def test_a_named_error_event() -> None:
    """`event: error` is an error whatever its data say."""
    guard = make()
    failed = b"event: error\ndata: boom\n\n"
    assert opened(guard) >> data(failed) << send(failed) >> eof() << end()
    assert guard.outcome == "upstream_error"


def test_foreign_events_may_end_cleanly() -> None:
    """Events of a shape that we don't know are passed on and may well be whole."""
    guard = make()
    body = event({"type": "ping"})
    assert opened(guard) >> data(body) << send(body) >> eof() << end()
    assert guard.outcome == "complete"


# --------------------------------------------------------------------------- client gone


STATES: dict[str, tuple[Told, ...]] = {
    "new": (),
    "started": (start(),),
    "opening": (start(), head()),
    "undecided": (start(), head(200, None), data(b"da")),
    "judging": (start(), head(400, "application/json"), data(b'{"error":')),
    "holding": (start(), head(), data(PING)),
    "watching": (start(), head(), data(ROLE)),
    "in mid-event": (start(), head(), data(ROLE, tok(HIGH)[:20])),
    "raw": (start(), head(500, "text/html"), data(b"<html>")),
}


def into(state: str, **more: Any) -> Guard:
    """A guard that asked for logprobs itself, in that state."""
    guard = make(body=PLAIN, **more)
    for told in STATES[state]:
        told.tell(guard, 0.0)
    return guard


@pytest.mark.parametrize("state", STATES)
def test_a_client_that_leaves_closes_the_upstream(state: str) -> None:
    """In every state: cancel at once, and nothing else."""
    guard = into(state)
    assert play(guard) >> gone() << cancel("client_gone") << broken()
    assert (guard.outcome, guard.next_timer) == ("client_gone", None)


def test_a_client_that_leaves_after_commit() -> None:
    """Reads that go through unjudged are no reason to stay."""
    guard = make()
    assert (
        opened(guard)
        >> data(tok(HIGH)) << send(tok(HIGH))
        >> gone() << cancel("client_gone") << broken()
    )  # fmt: skip
    assert guard.outcome == "client_gone"


@pytest.mark.parametrize("last", [D, FIN])
def test_a_client_that_leaves_after_the_end_mark_has_all_of_it(last: bytes) -> None:
    """SDKs close on [DONE]: that is a whole answer."""
    for body in (OWN, PLAIN):
        guard = make(Policy(mode="observe"), body)
        read = (C(0, "a"), last)
        assert (
            opened(guard)
            >> data(*read) << send(*read)
            >> gone() << cancel("client_gone") << broken()
        )  # fmt: skip
        assert guard.outcome == "complete"


# --------------------------------------------------------------------------- clocks


CLOCKS = Clocks(first_byte_s=10.0, idle_s=5.0, lifetime_s=60.0)
SILENT = sorry("timeout_idle", "the upstream fell silent")


def test_the_first_byte_clock() -> None:
    """No head in time: cancelled, and answered with a status."""
    guard = make(clocks=CLOCKS)
    assert guard.next_timer == 10.0
    assert (
        play(guard)
        >> start()
        >> timer(after_s=9.9)
        >> timer(after_s=0.1)
        << cancel("timeout_first_byte") << refuse(504, "timeout_first_byte", retry=True)
    )  # fmt: skip
    assert guard.outcome == "timeout_first_byte"


def test_the_idle_clock_before_any_event() -> None:
    """A head and then nothing."""
    guard = make(clocks=CLOCKS)
    assert (
        play(guard)
        >> start()
        >> head(after_s=8.0)
        >> timer(after_s=4.9)
        >> timer(after_s=0.1)
        << cancel("timeout_idle") << refuse(504, "timeout_idle", retry=True)
    )  # fmt: skip


def test_the_idle_clock_between_events() -> None:
    """Each event sets it back; at its end the client is told, and the end is broken."""
    guard = make(Policy(rule=Rule("mean_prob", 0.5, 99)), clocks=CLOCKS)
    assert (
        opened(guard)
        >> data(tok(HIGH), after_s=4.0) << send(tok(HIGH))
        >> data(tok(HIGH), after_s=4.0) << send(tok(HIGH))
    )  # fmt: skip
    assert guard.next_timer == 13.0
    assert (
        play(guard, now=8.0)
        >> timer(after_s=5.0) << cancel("timeout_idle") << send(SILENT) << broken()
    )  # fmt: skip
    assert guard.outcome == "timeout_idle"


@pytest.mark.parametrize("committed", [False, True])
def test_comments_do_not_set_the_idle_clock_back(committed: bool) -> None:
    """A server that only says that it is alive is silent."""
    guard = make(FIRST if committed else Policy(), clocks=CLOCKS)
    assert (
        opened(guard)
        >> data(tok(HIGH)) << send(tok(HIGH))
        >> data(PING, after_s=3.0) << send(PING)
        >> data(PING, after_s=1.9) << send(PING)
        >> timer(after_s=0.1) << cancel("timeout_idle") << send(SILENT) << broken()
    )  # fmt: skip


def test_half_an_event_does_not_set_the_idle_clock_back() -> None:
    """Only a whole event is a sign of life."""
    guard = make(clocks=CLOCKS)
    assert opened(guard) >> data(ROLE) << send(ROLE) >> data(b"data: ", after_s=4.0)
    assert guard.next_timer == 5.0


def test_the_lifetime_clock() -> None:
    """However lively the stream is."""
    guard = make(Policy(), clocks=Clocks(first_byte_s=10.0, idle_s=50.0, lifetime_s=60.0))
    late = sorry("timeout_lifetime", "the answer took longer than a stream may live")
    assert (
        opened(guard)
        >> data(tok(HIGH), after_s=49.0) << send(tok(HIGH))
        >> timer(after_s=11.0) << cancel("timeout_lifetime") << send(late) << broken()
    )  # fmt: skip
    assert guard.outcome == "timeout_lifetime"


def test_the_second_attempt_has_its_own_first_byte_clock() -> None:
    """The first one's silence is not held against it."""
    guard = make(body=PLAIN, clocks=CLOCKS)
    assert (
        play(guard)
        >> start()
        >> head(400, after_s=9.0)
        >> data(json.dumps(REFUSAL).encode())
        >> eof() << cancel("refused") << again(PLAIN)
    )  # fmt: skip
    assert guard.next_timer == 19.0
    assert (
        play(guard, now=9.0)
        >> timer(after_s=10.0)
        << cancel("timeout_first_byte") << refuse(504, "timeout_first_byte", retry=True)
    )  # fmt: skip


def test_time_is_measured_from_the_acceptance() -> None:
    """The report's times are milliseconds on the shell's clock."""
    guard = make()
    assert (
        opened(guard)
        >> data(ROLE, after_s=0.5) << send(ROLE)
        >> data(tok(HIGH), after_s=0.25) << send(tok(HIGH))
        >> data(FIN, D, after_s=0.25) << send(FIN, D)
        >> eof() << end()
    )  # fmt: skip
    report = guard.report()
    assert (report.first_byte_ms, report.verdict_ms, report.duration_ms) == (500, 750, 1000)


# --------------------------------------------------------------------------- faults from outside


FAULTS: dict[Outcome, int] = {
    "upstream_refused": 502,
    "upstream_truncated": 502,
    "timeout_connect": 504,
    "shutdown": 503,
    "internal_error": 500,
}


@pytest.mark.parametrize("outcome", FAULTS)
@pytest.mark.parametrize("state", ["started", "undecided", "judging", "holding"])
def test_a_fault_while_a_status_can_be_chosen(state: str, outcome: Outcome) -> None:
    """Cancelled, and answered with the status that belongs to it."""
    guard = into(state)
    assert (
        play(guard)
        >> fault(outcome) << cancel(outcome) << refuse(FAULTS[outcome], outcome, retry=True)
    )  # fmt: skip
    assert guard.outcome == outcome


def test_shutdown_in_mid_stream() -> None:
    """Drained too long: an error event, a broken end."""
    guard = into("in mid-event")
    told = sorry("shutdown", "streamguard is shutting down")
    assert play(guard) >> fault("shutdown") << cancel("shutdown") << send(told) << broken()
    assert guard.outcome == "shutdown"


def test_shutdown_after_the_end_mark() -> None:
    """The answer is whole: it ends cleanly, whatever the upstream still has to say."""
    guard = make()
    assert (
        opened(guard)
        >> data(tok(HIGH), D) << send(tok(HIGH), D)
        >> fault("shutdown") << cancel("shutdown") << end()
    )  # fmt: skip
    assert guard.outcome == "complete"


def test_nothing_is_written_to_a_client_that_does_not_read() -> None:
    """After a stalled write an error event would only queue behind it."""
    guard = into("watching")
    assert play(guard) >> fault("timeout_write") << cancel("timeout_write") << broken()


def test_a_fault_while_raw() -> None:
    """No event of ours goes into what is no event stream."""
    assert play(into("raw")) >> fault("shutdown") << cancel("shutdown") << broken()


# --------------------------------------------------------------------------- after the end


ENDINGS: dict[str, tuple[Told, ...]] = {
    "complete": (start(), head(), data(tok(HIGH), D), eof()),
    "aborted": (start(), head(), data(tok(LOW))),
    "client_gone": (start(), gone()),
    "upstream_truncated": (start(), head(), eof()),
    "shutdown": (start(), fault("shutdown")),
}


@pytest.mark.parametrize("outcome", ENDINGS)
def test_nothing_comes_after_the_end(outcome: str) -> None:
    """Whatever a shell still tells: no action, and the record stands."""
    guard = make()
    for told in ENDINGS[outcome]:
        told.tell(guard, 0.0)
    report = guard.report()
    assert (guard.ended, report.outcome, guard.next_timer) == (True, outcome, None)

    assert (
        play(guard)
        >> head()
        >> head(500)
        >> data(tok(LOW))
        >> eof()
        >> eof(clean=False)
        >> fault("shutdown")
        >> gone()
        >> timer(after_s=9999.0)
    )  # fmt: skip
    assert guard.report() == report


@pytest.mark.parametrize("on_abort", ["finish", "error"])
def test_the_report_names_the_policy(on_abort: OnAbort) -> None:
    """What was decided and by what, in one value; the shell's own fields win."""
    policy = Policy(name="p", rule=RULE, on_abort=on_abort)
    guard = make(policy)
    for told in ENDINGS["aborted"]:
        told.tell(guard, 0.0)
    report = guard.report(path="/v1/chat/completions", sent_bytes=5)

    assert (report.policy, report.mode, report.on_abort) == ("p", "enforce", on_abort)
    assert (report.path, report.sent_bytes, report.model) == ("/v1/chat/completions", 5, "m")
    assert (report.id, report.upstream_id, report.http_status) == ("sg-1", "x1", 200)


def test_sent_bytes_are_those_that_were_sent() -> None:
    """Counted as they leave, ours included; what was held and dropped is not."""
    guard = make()
    assert opened(guard) >> data(tok(LOW)) << cancel() << send(tok(LOW), finish(), D) << end()
    assert guard.report().sent_bytes == len(tok(LOW) + finish() + D)
    held = into("holding")
    held.receive_client_gone(0.0)
    assert held.report().sent_bytes == 0


def test_a_report_before_the_end_is_an_internal_error() -> None:
    """A shell that lost track still has a record."""
    assert make().report().outcome == "internal_error"


def test_an_answer_cut_whole_is_aborted_though_the_server_ignored_n() -> None:
    """Two choices were asked for, one came and was silenced: nobody got an answer."""
    guard = make(body=OWN_2)
    assert (
        opened(guard)
        >> data(tok(LOW)) << send(tok(LOW), finish())
        >> data(tok(LOW), FIN, D) << send(D)
        >> eof() << end()
    )  # fmt: skip
    assert guard.outcome == "aborted"


def test_observing_obeys_refused_where_closed_would_not() -> None:
    """Closed causes end nothing while observing, so the refusal passes as the policy says."""
    policy = Policy(
        name="p", mode="observe", rule=RULE, refused="pass", fail=FailPolicy.all("closed")
    )
    guard = make(policy, PLAIN)
    refusal = event(REFUSAL)
    assert opened(guard) >> data(refusal) << send(refusal) >> eof() << end()
    assert (guard.refused, guard.outcome) == (True, "upstream_error")


def test_a_body_too_short_to_tell_is_no_stream() -> None:
    """`da` labelled as plain text is an answer, not a stream that broke off."""
    guard = make()
    assert (
        play(guard)
        >> start()
        >> head(200, "text/plain")
        >> data(b"da")
        >> eof()
        << send(b"da")
        << end()
    )
    assert (guard.opaque_reason, guard.outcome) == ("not_sse", "complete")


def test_an_empty_finish_reason_is_none() -> None:
    """Some gateways write `""` on every chunk: the answer goes on, and can be cut."""
    guard = make()
    low = C(0, "a", L(E("a", LOW, 1)), "")
    assert opened(guard) >> data(low) << cancel() << send(low, finish(), D) << end()
    assert guard.outcome == "aborted"


def test_a_refusal_is_confirmed_by_the_second_attempt() -> None:
    """An error may quote the client's own word; only a taken second attempt proves the refusal."""
    for status, confirmed in ((200, True), (400, False)):
        guard = make(body=PLAIN)
        refusal = json.dumps(REFUSAL).encode()
        assert (
            play(guard)
            >> start()
            >> head(400, "application/json")
            >> data(refusal)
            >> eof() << cancel("refused") << again(PLAIN)
            >> head(status)
        )  # fmt: skip
        assert (guard.refused, guard.refusal_confirmed) == (True, confirmed)


def test_injected_logprobs_do_not_leak_from_plain_json() -> None:
    """The client did not ask for them, whatever form the answer takes."""
    guard = make(body=PLAIN)
    answer = json.dumps(
        {"choices": [{"index": 0, "message": {"content": "a"}, "logprobs": L(E("a", LOW, 1))}]}
    ).encode()
    cut = answer.index(b'"logprobs": ') + len(b'"logprobs": ')
    nulled = answer[:cut] + b"null}]}"
    assert (
        play(guard) >> start() >> head(200, "application/json") >> data(answer)
        >> eof() << send(nulled) << end()
    )  # fmt: skip
    assert not guard.verbatim


def test_error_that_says_nothing_is_no_error() -> None:
    """`"error": 0` on a chunk must not blind the guard: SDKs don't take it for one either."""
    guard = make()
    low = tok(LOW)[:-3] + b',"error": { }}\n\n'
    assert opened(guard) >> data(low) << cancel() << send(low, finish(), D) << end()
