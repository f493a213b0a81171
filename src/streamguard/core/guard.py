"""Guard: bytes in, actions out. The file to read first.

A Guard is one guarded request. Around it a shell (the proxy, a driver, replay) moves bytes and
does what the actions say; inside it the SSE parser cuts events, the dialect reads them, `Watch`
judges. It has no socket, no clock and no randomness: the same bytes give the same actions however
they were cut into reads, and time moves only its clocks, never a verdict.

States: OPENING (is this a stream at all?) -> WATCHING (whole events, judged) -> PASSING (reads as
they came; only ends and errors are read) or RAW (no event stream: forwarded as it is) -> ENDED.
JUDGING holds an answer that may be a refusal of the logprobs that we asked for.

The order of a cut: `Cancel` (money first), the deciding event whole (it is paid for and shows the
evidence), the tail, `End`. A stream that breaks off never looks finished.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from streamguard.core.capabilities import REFUSAL_STATUSES, names_logprobs
from streamguard.core.dialects import Reader, Reading, Tail
from streamguard.core.edits import line_end, put_null, without_choices
from streamguard.core.events import (
    Action,
    Again,
    Cancel,
    DialectName,
    End,
    OpaqueReason,
    Outcome,
    Reason,
    Refuse,
    Refused,
    SseEvent,
    Status,
    StreamReport,
    Verdict,
)
from streamguard.core.failures import ENCODED, FAILURES, UNWATCHABLE, failure
from streamguard.core.jsonspan import replace_spans
from streamguard.core.outlet import Outlet
from streamguard.core.progress import Progress
from streamguard.core.request import Prepared
from streamguard.core.signals import needed_alternatives
from streamguard.core.sniff import kind_of
from streamguard.core.specs import Policy
from streamguard.core.sse import DEFAULT_MAX_EVENT_BYTES, SseParser
from streamguard.core.watch import Watch

MAX_REFUSAL_BYTES: Final = 64 * 1024
"""An error answer larger than this is no refusal of a parameter; it is passed on."""
MAX_UNPARSABLE: Final = 3
"""Where unparsable events are closed: how many are taken before the stream is ended."""


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """How long an upstream may take, in seconds. Keep-alive comments don't reset `idle_s`."""

    first_byte_s: float = 120.0
    idle_s: float = 120.0
    lifetime_s: float = 1800.0


_State: TypeAlias = Literal["opening", "judging", "watching", "passing", "raw", "ended"]


class Guard:
    """Guards one request.

    Args:
        policy: what to judge, and what to do then.
        prepared: the request, read.
        id: our id of the request; it stands in the tail.
        now: seconds on the clock that every later `now` is read from.
        known_refused: this upstream refused such a request lately.
        clocks: how long the upstream may take.
        max_event_bytes: the largest event.
        also: further signals for the report.
        watch_all: read every entry even after the verdicts (observing always does).
    """

    def __init__(
        self,
        policy: Policy,
        prepared: Prepared,
        *,
        id: str,
        now: float,
        known_refused: bool = False,
        clocks: Clocks | None = None,
        max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
        also: tuple[str, ...] = (),
        watch_all: bool = False,
    ) -> None:
        self._policy = policy
        self._prepared = prepared
        self._id = id
        self._clocks = clocks or Clocks()
        self._enforce = policy.mode == "enforce"
        self._watch_all = watch_all or not self._enforce or prepared.injected
        self._progress = Progress(now)
        self._heard_at = now
        self._head_at: float | None = None
        self._max_event_bytes = max_event_bytes
        self._parser = SseParser(max_event_bytes=max_event_bytes)
        self._reader = Reader(
            locate=prepared.injected,
            texts=policy.fail.no_signal == "closed",
            alternatives=policy.alternatives > 0
            or any(needed_alternatives(name, None) for name in also),
        )
        self._watch = Watch(policy, asked=prepared.asked, choices=prepared.choices, also=also)
        self._state: _State = "opening"
        self._http_status = 0
        self._content_type = ""
        self._early = b""  # first bytes, until they tell what the body is
        self._judged: list[bytes] = []
        self._judged_bytes = 0
        self._spoken = b""  # the last event that came with its line ends
        self._tail_made: tuple[bytes, Tail | None] = (b"", None)
        self._dialect: DialectName | None = None
        self._dead: dict[int, Verdict] = {}
        # What must go before an event of ours; None: the client has half an event, so none may.
        self._gap: bytes | None = b""
        self._at_eof = False
        self._verbatim = False
        self._cancelled = False
        self._outlet = Outlet()
        self.body = prepared.body
        self.refused = False
        self.opaque_reason: OpaqueReason | None = prepared.unwatchable
        self.outcome: Outcome | None = None
        if known_refused and prepared.injected and self._when_refused != "pass":
            self._stop_asking()

    # ------------------------------------------------------------------ what the shell tells

    def start(self) -> list[Action]:
        """Call once, before anything is sent upstream. It may refuse right away."""
        closed = self._closed("unwatchable") and (self.opaque_reason or self.refused)
        if closed or (self.refused and self._rejects):
            self._refuse_unwatchable(self._progress.opened_at)
        return self._take()

    def receive_head(
        self, status: int, content_type: str | None, content_encoding: str | None, now: float
    ) -> list[Action]:
        """The upstream's status and the two headers that matter."""
        if self._state == "ended":
            return []
        self._head_at = self._heard_at = now
        self._http_status = status
        self._content_type = (content_type or "").partition(";")[0].strip().lower()
        encoded = (content_encoding or "identity").strip().lower() != "identity"
        if status != 200:
            if self._asking and status in REFUSAL_STATUSES and not encoded:
                self._state = "judging"
            else:
                self._become_opaque("error_status")
        elif encoded:
            if self._closed("encoded"):
                self._refuse(502, "encoded", ENCODED, "upstream_error", now)
            else:
                self._become_opaque("encoded")
        return self._take()

    def receive_data(self, data: bytes, now: float) -> list[Action]:
        """One read of the response body, transfer framing taken off."""
        if self._state == "ended" or not data:
            return []
        if self._progress.first_at is None:
            self._progress.first_at = now
        if self._state == "opening":
            data = self._open(data, now)
        match self._state:
            case "judging":
                self._judge(data, now)
            case "watching":
                self._watch_data(data, now)
            case "passing":
                self._pass_data(data, now)
            case "raw":
                self._heard_at = now
                self._outlet.write(data)
            case _:
                pass
        return self._take()

    def receive_eof(self, now: float, *, clean: bool = True) -> list[Action]:
        """The response body ended; `clean` if its framing said so."""
        self._at_eof = True
        match self._state:
            case "ended":
                return []
            case "judging":
                if clean and self._judged_refuses():
                    self._on_refusal(now)
                elif self._withholds_judged:
                    self._judged.clear()
                    if clean:
                        self._refuse_unwatchable(now, "not_sse")
                else:
                    self._release_judged()
            case "opening":
                self._outlet.write(self._early)
                if self._early and self._content_type != "text/event-stream":
                    self._become_opaque("not_sse")  # too short to tell, so not a stream
            case "watching" | "passing":
                self._last_event(now, clean=clean)
            case "raw":
                pass
        if self._progress.attempts > 1 and self._head_at is None:
            self._at_eof = False  # a second attempt has begun
        elif not self.ended:
            if self._is_whole(clean=clean):
                self._finish(self._said(), now, clean=clean)
            else:
                self._break_off("upstream_truncated", now)
        return self._take()

    def receive_error(self, outcome: Outcome, now: float) -> list[Action]:
        """Something other than the stream itself ended it: one of `FAILURES`."""
        if self._state == "ended":
            return []
        if not self._holding:
            self._outlet.flush()
        self._outlet.act_at_once([Cancel(outcome)])
        self._cancelled = True
        if self._progress.done:
            self._finish(self._said(), now, clean=True)
        else:
            self._break_off(outcome, now)
        return self._take()

    def receive_client_gone(self, now: float) -> list[Action]:
        """The client has left; nothing more can be sent."""
        if self._state == "ended":
            return []
        self._outlet.act_at_once([Cancel("client_gone")])
        streaming = self._state in ("watching", "passing")
        over = streaming and self._outlet.sent_bytes > 0 and self._is_whole(clean=False)
        self._finish(self._said() if over else "client_gone", now, clean=False)
        return self._take()

    def receive_timer(self, now: float) -> list[Action]:
        """The time that `next_timer` named has come (or not yet: then nothing happens)."""
        due = self.next_timer
        if due is None or now < due:
            return []
        if now >= self._progress.opened_at + self._clocks.lifetime_s:
            return self.receive_error("timeout_lifetime", now)
        return self.receive_error(
            "timeout_first_byte" if self._head_at is None else "timeout_idle", now
        )

    # ------------------------------------------------------------------ what the shell may ask

    @property
    def next_timer(self) -> float | None:
        """When to call `receive_timer`; it moves later as data comes, so ask again then."""
        if self._state == "ended":
            return None
        silence = self._clocks.first_byte_s if self._head_at is None else self._clocks.idle_s
        return min(self._progress.opened_at + self._clocks.lifetime_s, self._heard_at + silence)

    @property
    def ended(self) -> bool:
        """Nothing more will come of this guard."""
        return self._state == "ended"

    @property
    def status(self) -> Status:
        """What `x-streamguard-status` says, from the first `Send` on."""
        if self.refused:
            return "refused"
        return "opaque" if self.opaque_reason else "guarded"

    @property
    def refusal_confirmed(self) -> bool:
        """The upstream took the request without our fields: it was they that it refused.

        Only this is worth remembering. An error may quote the client's own words, and must not
        blind the guard for everybody else.
        """
        return self.refused and self._progress.attempts > 1 and self._http_status == 200

    @property
    def verbatim(self) -> bool:
        """No byte of this body is, or will be, added, changed or left out: its length holds."""
        return self._verbatim

    @property
    def rule_errors(self) -> int:
        """How often a rule raised and was contained."""
        return self._watch.rule_errors

    def report(self, **shell: Any) -> StreamReport:
        """The record of this request; `shell` adds, or puts right, what only the shell knows."""
        seen = self._progress
        unscored = self.status == "guarded" and seen.events > 0 and not self._watch.scorable
        fields: dict[str, Any] = {
            "id": self._id,
            "upstream_id": seen.upstream_id,
            "model": self._prepared.model,
            "dialect": self._dialect or self._prepared.dialect,
            "policy": self._policy.name,
            "mode": self._policy.mode,
            "release": self._policy.release,
            "on_abort": self._policy.on_abort,
            "status": "unscored" if unscored else self.status,
            "opaque_reason": self.opaque_reason,
            "outcome": self.outcome or "internal_error",
            "http_status": self._http_status or None,
            "attempts": seen.attempts,
            "events": seen.events,
            "unparsable": seen.unparsable,
            "tokens_seen": self._watch.entries,
            "watched": "all" if self._watch_all else "until_commit",
            "sent_bytes": self._outlet.sent_bytes,
            "first_byte_ms": seen.since_opened_ms(seen.first_at),
            "verdict_ms": seen.since_opened_ms(seen.verdict_at),
            "duration_ms": seen.since_opened_ms(seen.ended_at),
            "choices": self._watch.reports(),
        }
        return StreamReport(**(fields | shell))

    # ------------------------------------------------------------------ what the body is

    def _open(self, data: bytes, now: float) -> bytes:
        """Decide what the body is. Returns the bytes to go on with."""
        data, self._early = self._early + data, b""
        match kind_of(data, self._content_type):
            case None:
                self._early = data
                return b""
            case "stream":
                watchable = not self.opaque_reason and not self.refused
                self._state = "watching" if watchable else "passing"
            case "object" if self._asking:
                self._state = "judging"  # perhaps a refusal that came with status 200
            case _ if self._closed("unwatchable"):
                self._refuse_unwatchable(now, "not_sse")
            case _:
                self._become_opaque("not_sse")
        return data

    def _judge(self, data: bytes, now: float) -> None:
        """Hold an answer that may be about our own fields, as long as it is small."""
        self._heard_at = now
        self._judged.append(data)
        self._judged_bytes += len(data)
        if self._judged_bytes <= MAX_REFUSAL_BYTES:
            return
        if self._withholds_judged:
            self._refuse_unwatchable(now, "not_sse")
        else:
            self._release_judged()

    @property
    def _withholds_judged(self) -> bool:
        """What is held is an answer, and the policy lets none pass unwatched."""
        return self._http_status == 200 and self._closed("unwatchable")

    def _judged_refuses(self) -> bool:
        body = b"".join(self._judged)
        is_error = self._http_status != 200 or self._reader.read(body).kind == "error"
        return is_error and names_logprobs(body)

    def _release_judged(self) -> None:
        body = b"".join(self._judged)
        self._judged.clear()
        found = self._reader.read(body).logprobs if self._asking else ()
        self._outlet.write(replace_spans(body, list(found), b"null"))
        self._become_opaque("not_sse" if self._http_status == 200 else "error_status")
        self._verbatim = not found

    def _on_refusal(self, now: float) -> None:
        """The upstream does not take our logprobs fields."""
        if self._when_refused == "pass":
            self.refused = True
            if self._state == "judging":
                self._release_judged()
            return
        self._stop_asking()
        if self._rejects:
            self._refuse_unwatchable(now)
            return
        self._outlet.act_at_once([Cancel("refused"), Again(self.body)])
        self._progress.again()
        self._state = "opening"
        self._head_at, self._heard_at = None, now
        self._judged.clear()
        self._judged_bytes = 0
        self._gap = b""
        self._parser = SseParser(max_event_bytes=self._max_event_bytes)

    def _stop_asking(self) -> None:
        self.refused = True
        self.body = self._prepared.original
        self._reader = Reader()

    def _become_opaque(self, reason: OpaqueReason) -> None:
        self.opaque_reason = reason
        self._verbatim = not self._progress.events  # nothing was there to change
        self._state = "raw"

    # ------------------------------------------------------------------ events

    def _watch_data(self, data: bytes, now: float) -> None:
        events = self._parser.feed(data)
        for at, event in enumerate(events):
            self._on_event(event, now)
            if self._state != "watching":
                if self._state == "passing":
                    self._go_on_passing(events[at + 1 :], now)
                return
        if self._parser.oversize:
            self._on_oversize(now)

    def _go_on_passing(self, rest: list[SseEvent], now: float) -> None:
        """The verdicts fell in the middle of a read: what is left of it goes out as it is."""
        for event in rest:
            self._outlet.write(event.raw)
            self._on_passing(event, now)
        self._outlet.write(self._parser.peek())
        self._gap = None if self._parser.held_bytes else b""
        if self._parser.oversize:
            self._become_opaque("oversize")

    def _pass_data(self, data: bytes, now: float) -> None:
        self._outlet.write(data)
        for event in self._parser.feed(data):
            self._on_passing(event, now)
        self._gap = None if self._parser.held_bytes else b""
        if self._parser.oversize:
            self._parser.rest()
            self._become_opaque(self.opaque_reason or "oversize")

    def _on_passing(self, event: SseEvent, now: float) -> None:
        if event.data is None:
            return
        self._hear(event, now)
        reading = self._reader.read_ends(event.data, event.name)
        self._progress.note(reading, event.data)
        if reading.chunk is not None:
            for delta in reading.chunk.choices:
                self._watch.note(delta.index, delta.finish_reason)

    def _hear(self, event: SseEvent, now: float) -> None:
        """A sign of life; the tail will end its lines as this event does."""
        self._heard_at = now
        if not self._at_eof:  # the last event may lack its line ends
            self._spoken = event.raw

    def _on_event(self, event: SseEvent, now: float) -> None:
        """WATCHING: read one event, judge it, send it."""
        if event.data is None:
            self._outlet.write(event.raw)
            return
        self._hear(event, now)
        reading = self._reader.read(event.data, event.name)
        self._progress.note(reading, event.data)
        if reading.kind == "chunk":
            self._on_chunk(event, reading, now)
            return
        if reading.kind == "done":
            self._note_verdicts(self._watch.end(), now)
        elif reading.kind == "error" and self._progress.events == 1 and self._asking:
            if names_logprobs(event.data) and not self._outlet.sent_bytes:
                self._on_refusal(now)
                if self._state != "watching":
                    return
        elif self._progress.unparsable >= MAX_UNPARSABLE and self._closed("unparsable"):
            self._condemn("unparsable", event.raw, now)
            return
        self._outlet.write(event.raw)

    def _on_chunk(self, event: SseEvent, reading: Reading, now: float) -> None:
        assert reading.chunk is not None
        self._dialect = self._dialect or reading.dialect
        raw = put_null(event, reading.logprobs) if reading.logprobs else event.raw
        verdicts = self._watch.see(reading.chunk)
        if not verdicts and not self._dead:
            self._outlet.write(raw)
            return
        self._note_verdicts(verdicts, now)
        if self._dead:
            raw = without_choices(raw, self._dead.keys())
        fresh = [v for v in verdicts if self._cuts(v)]
        for verdict in fresh:
            self._dead[verdict.index] = verdict
            self._watch.mark_cut(verdict.index)
        if self._nothing_left(fresh):
            self._cut(raw, fresh, now)
            return
        self._outlet.write(raw)
        self._outlet.write(*(self._finish_chunk(verdict) for verdict in fresh))
        if not self._watch_all and not self._dead and self._watch.settled:
            self._state = "passing"

    def _cuts(self, verdict: Verdict) -> bool:
        """Whether this verdict stops anything: an answer already finished has nothing to cut."""
        finished = verdict.index in self._watch.finished or self._at_eof
        return verdict.kind == "abort" and self._enforce and not finished

    def _nothing_left(self, fresh: list[Verdict]) -> bool:
        """Whether no choice is left that anybody wants generated, and one that is was cut."""
        if not self._dead:
            return False
        if self._policy.dead == "any" and fresh:
            return True
        gone = self._watch.finished | self._dead.keys()
        expected = self._prepared.choices
        return expected is not None and len(gone) >= expected and self._watch.seen <= gone

    def _last_event(self, now: float, *, clean: bool) -> None:
        """The body ended without a last blank line; what is left may still say something."""
        event = self._parser.end()
        if event is None:
            return
        if self._state == "passing":
            self._on_passing(event, now)
            return
        # A CR as the blank line's end was waiting for an LF that can't come any more.
        whole = event.data is not None and (
            event.raw.endswith(b"\n\r")
            or self._reader.read(event.data, event.name).kind != "unparsable"
        )
        if clean or whole:
            self._on_event(event, now)
            self._gap = line_end(self._spoken) * 2 if whole else None

    def _is_whole(self, *, clean: bool) -> bool:
        return clean if self._state == "raw" else self._progress.is_whole(self._watch, clean=clean)

    # ------------------------------------------------------------------ endings

    def _cut(self, raw: bytes, fresh: list[Verdict], now: float) -> None:
        """Cancel, the deciding event, the tail, the end."""
        self._outlet.act(Cancel("abort"))
        self._outlet.write(raw)
        tail = self._tail()
        # With `dead = any` some still run: they end with the one that died, not as if unfinished.
        running = sorted(self._watch.seen - self._watch.finished - self._dead.keys())
        for index in running:
            self._watch.mark_cut(index)
        if self._policy.on_abort == "error" and not self._watch.finished - self._dead.keys():
            verdict = fresh[-1] if fresh else next(iter(self._dead.values()))
            error = tail.error(verdict, stream_id=self._id, policy=self._policy.name)
            self._outlet.write(error)
        else:
            fresh = [*fresh, *(msgspec.structs.replace(fresh[0], index=i) for i in running)]
            self._outlet.write(*(self._finish_chunk(verdict) for verdict in fresh))
            if self._prepared.include_usage:
                self._outlet.write(tail.usage(self._watch.entries))
            self._outlet.write(tail.done())
        self._finish("aborted", now, clean=True)

    def _condemn(self, reason: Reason, raw: bytes, now: float) -> None:
        """A cause that the policy closes made the stream unreadable: cut what is still running."""
        verdicts = [v for v in self._watch.condemn(reason) if v.index not in self._dead]
        self._note_verdicts(verdicts, now)
        for verdict in verdicts:
            self._dead[verdict.index] = verdict
            self._watch.mark_cut(verdict.index)
        self._cut(raw, verdicts, now)

    def _on_oversize(self, now: float) -> None:
        rest = self._parser.rest()
        if self._closed("oversize"):
            self._condemn("oversize", b"", now)
            return
        self._outlet.write(rest)
        self._become_opaque("oversize")

    def _break_off(self, outcome: Outcome, now: float) -> None:
        """End visibly broken: by a status if one can still be chosen, else by an error event."""
        status, text = FAILURES[outcome]
        streaming = self._state in ("watching", "passing")
        if not self._holding:
            self._outlet.flush()
        if not self._outlet.sent_bytes:
            self._refuse(status, outcome, text, outcome, now)
            return
        if streaming and self._gap is not None and outcome != "timeout_write":
            self._outlet.write(self._gap, self._tail().failure(outcome, text))
        self._finish(outcome, now, clean=False)

    def _refuse_unwatchable(self, now: float, reason: OpaqueReason | None = None) -> None:
        self.opaque_reason = reason or self.opaque_reason
        self._refuse(422, self.opaque_reason or "refused", UNWATCHABLE, "complete", now)

    def _refuse(self, status: int, code: str, text: str, outcome: Outcome, now: float) -> None:
        """Answer for the upstream. `complete` is what a refusal by policy counts as."""
        body = msgspec.json.encode({"error": failure(code, text)})
        refusal = Refuse(status, body, retry=status >= 500 and code != "encoded")
        nothing_open = self._head_at is None or self._at_eof or self._cancelled
        self._outlet.act_at_once([refusal] if nothing_open else [Cancel(code), refusal])
        self._http_status = status
        self._end(outcome, now)

    def _finish(self, outcome: Outcome, now: float, *, clean: bool) -> None:
        if outcome in ("complete", "upstream_error"):
            self._note_verdicts(self._watch.end(), now)
        self._end(outcome, now)
        self._outlet.act(End(clean))

    def _end(self, outcome: Outcome, now: float) -> None:
        self._state = "ended"
        self._progress.ended_at = now
        self.outcome = outcome

    # ------------------------------------------------------------------ small things

    @property
    def _asking(self) -> bool:
        """Our own fields are upstream, and nobody has refused them."""
        return self._prepared.injected and not self.refused

    @property
    def _when_refused(self) -> Refused:
        return "reject" if self._closed("unwatchable") else self._policy.refused

    @property
    def _rejects(self) -> bool:
        return self._when_refused == "reject"

    def _closed(self, cause: str) -> bool:
        """Whether this cause ends the stream; observing never ends one."""
        return self._enforce and getattr(self._policy.fail, cause) == "closed"

    def _said(self) -> Outcome:
        """The outcome of an answer that came to its own end."""
        all_cut = self._dead and self._watch.seen <= self._dead.keys()
        return "aborted" if all_cut else self._progress.said

    def _note_verdicts(self, verdicts: list[Verdict], now: float) -> None:
        if verdicts and self._progress.verdict_at is None:
            self._progress.verdict_at = now

    def _finish_chunk(self, verdict: Verdict) -> bytes:
        return self._tail().finish(
            verdict,
            finish_reason=self._policy.finish_reason,
            stream_id=self._id,
            policy=self._policy.name,
        )

    def _tail(self) -> Tail:
        """Made once per event: reading the payload's meta is the dear part of it."""
        made_for, tail = self._tail_made
        if tail is None or made_for is not self._spoken:
            dialect = self._dialect or self._prepared.dialect
            tail = Tail(dialect, self._progress.payload, line_end(self._spoken))
            self._tail_made = (self._spoken, tail)
        return tail

    @property
    def _holding(self) -> bool:
        """A refusal may still come (nothing read yet of a stream that we asked logprobs of).

        Until then even comments wait: a status that went out can't be taken back. An upstream that
        sends nothing else is not waited for without end.
        """
        return (
            self._state == "watching"
            and self._progress.events == 0
            and self._asking
            and not self._outlet.sent_bytes
            and self._outlet.waiting_bytes <= MAX_REFUSAL_BYTES
        )

    def _take(self) -> list[Action]:
        return self._outlet.take(hold=self._holding)
