"""One client request, from its head to its record.

The order is: what may not be (answered with a fixed text), what is guarded (read whole, prepared,
relayed), and everything else (passed through). Whatever happens, one record is written, in one
place: `Handler.__call__`, in its `finally`.

aiohttp leaves one hole that shapes this: a framing error in a body that arrives after its head
leaves the reader waiting for ever. So each read of a body has a deadline.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiohttp import web

from streamguard.config.settings import Settings
from streamguard.core.capabilities import RefusalMemory
from streamguard.core.events import Outcome, StreamReport
from streamguard.core.guard import Clocks, Guard
from streamguard.core.request import is_guarded_path, prepare
from streamguard.core.specs import Policy
from streamguard.proxy.headers import (
    Header,
    host_allowed,
    is_looped,
    repeats_a_single_field,
    request_head,
    tokens,
)
from streamguard.proxy.limits import LimitFinder
from streamguard.proxy.passing import Passing
from streamguard.proxy.pool import Pool
from streamguard.proxy.relay import Relay
from streamguard.proxy.target import BadTarget, Upstream
from streamguard.records.log import finished
from streamguard.serving.admission import Admission
from streamguard.serving.answers import ANSWERS, Code
from streamguard.serving.drain import Drain
from streamguard.serving.listener import Door
from streamguard.serving.reply import Reply
from streamguard.telemetry.logs import REQUEST_REJECTED, STREAM_FINISHED, Log
from streamguard.telemetry.metrics import Metrics

FREE_BODY_BYTES: Final = 1024 * 1024
"""So much of a body is read before its request takes a place: slow senders hold none, and large
bodies cannot fill the memory."""

_OBSERVED: Final = ("first_prob", "mean_prob", "min_prob")
"""Signals recorded of every observed stream, whatever the rules name."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Rejected(Exception):
    """The request gets a fixed answer and goes no further."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True, eq=False)
class _Visit:
    """What is known of one request while it lasts."""

    id: str
    started: float
    request: web.BaseRequest
    reply: Reply
    path: str | None = None
    admitted: bool = False
    outcome: Outcome | None = None
    guard: Guard | None = None
    guarded_at: float = 0.0
    bridge: Relay | Passing | None = field(default=None)

    def shutdown(self) -> None:
        """See `serving.drain.Stoppable`."""
        if self.bridge is not None:
            self.bridge.shutdown()


class Handler:
    """Answers every request of the proxy's listener.

    Args:
        settings: of the process.
        policy: what to judge.
        upstream: where requests go.
        pool: its connections.
        admission: how much at once.
        drain: the life of the server.
        log, metrics: observers.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        *,
        upstream: Upstream,
        pool: Pool,
        admission: Admission,
        drain: Drain,
        log: Log,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._upstream = upstream
        self._pool = pool
        self._admission = admission
        self._drain = drain
        self._log = log
        self._metrics = metrics
        self._memory = RefusalMemory()
        self._limits = LimitFinder(upstream, pool)
        self._clocks = Clocks(
            first_byte_s=settings.first_byte_s,
            idle_s=settings.idle_s,
            lifetime_s=settings.lifetime_s,
        )
        self._loop = asyncio.get_running_loop()
        self.requests = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request and record it. Raises nothing but the handler's own cancellation."""
        door = request.protocol
        assert isinstance(door, Door)
        reply = Reply(request, draining=self._is_draining)
        visit = _Visit(secrets.token_hex(8), self._loop.time(), request, reply)
        self._drain.add(visit)
        self._metrics.inflight.inc()
        try:
            await self._serve(visit, door)
        except _Rejected as rejected:
            self._reject(visit, rejected.code)
        except asyncio.CancelledError:
            # A reply that was broken off on purpose closes the connection, which comes back as a
            # cancellation; the bridge then knows better how it ended.
            if visit.bridge is None or not visit.bridge.over:
                visit.outcome = "shutdown" if self._drain.time_is_up else "client_gone"
            if not reply.ended:
                reply.finish(clean=False)
            raise
        except Exception as error:
            self.failed(error)
            visit.outcome = "internal_error"
            if not reply.begun:
                reply.error("internal_error", self._id_mark(visit))
            elif not reply.ended:
                reply.finish(clean=False)
        finally:
            if visit.bridge is not None:
                visit.bridge.close()
            if visit.admitted:
                self._admission.leave()
            door.request_over()
            self._drain.remove(visit)
            self._metrics.inflight.dec()
            self._record(visit)
        return reply

    # ------------------------------------------------------------------ ListenerEvents, Failures

    def rejected(self, code: Code) -> None:
        """A connection was turned away before there was a request."""
        self._metrics.rejected.inc()
        self._log.info(REQUEST_REJECTED, code=code)

    def failed(self, error: BaseException | None) -> None:
        """An exception that should not have been: counted, and located without its text."""
        self._metrics.errors.inc()
        self._log.error(error)

    # ------------------------------------------------------------------ the request

    async def _serve(self, visit: _Visit, door: Door) -> None:
        request = visit.request
        target = self._check(request)
        visit.path = _shown(request.raw_path)
        dialect = is_guarded_path(request.raw_path) if request.method == "POST" else None
        body: bytes | None = None
        if dialect is not None and self._policy.mode != "off":
            body = await self._read(visit)
            await self._admit(visit)
            limits = await self._limits.find(
                dialect, self._policy.alternatives, request.raw_headers
            )
            prepared = prepare(request.raw_path, body, self._policy, limits=limits)
            if prepared.guarded:
                now = self._loop.time()
                known = self._memory.refused(prepared.facets, now)
                guard = Guard(
                    self._policy,
                    prepared,
                    id=visit.id,
                    now=now,
                    known_refused=known,
                    clocks=self._clocks,
                    max_event_bytes=self._settings.event_max_bytes,
                    also=_OBSERVED if self._policy.mode == "observe" else (),
                )
                visit.guard, visit.guarded_at = guard, now
                await self._relay(visit, door, guard, target)
                if guard.refusal_confirmed and not known:
                    self._memory.remember(prepared.facets, self._loop.time())
                return
        await self._admit(visit)
        await self._pass(visit, door, target, body)

    async def _relay(self, visit: _Visit, door: Door, guard: Guard, target: bytes) -> None:
        request = visit.request

        def attempt(body: bytes) -> bytes:
            head = request_head(
                "POST",
                target,
                self._upstream.authority,
                request.raw_headers,
                identity=True,
                length=len(body),
            )
            return head + body

        relay = Relay(
            guard,
            visit.reply,
            self._pool,
            request=attempt,
            marks=lambda: self._marks(visit, guard),
            connect_s=self._settings.connect_s,
            failures=self,
        )
        visit.bridge = relay
        door.attach(relay, whole=True)
        await relay.run()

    async def _pass(self, visit: _Visit, door: Door, target: bytes, body: bytes | None) -> None:
        request = visit.request
        length = len(body) if body is not None else request.content_length
        streams_unsized = body is None and request.body_exists and length is None
        bare = request.raw_path.partition("?")[0]
        passing = Passing(
            visit.reply,
            self._pool,
            method=request.method,
            request_head=request_head(
                request.method,
                target,
                self._upstream.authority,
                request.raw_headers,
                length=length,
                chunked=streams_unsized,
            ),
            body=body,
            chunked=streams_unsized,
            first_byte_s=self._settings.first_byte_s,
            idle_s=self._settings.idle_s,
            lifetime_s=self._settings.lifetime_s,
            learn=self._limits.learn
            if request.method == "GET" and bare.endswith("/models")
            else None,
            connect_s=self._settings.connect_s,
            failures=self,
        )
        visit.bridge = passing
        door.attach(passing)
        await passing.run(request, lambda: self._continue(request))

    def _check(self, request: web.BaseRequest) -> bytes:
        """Turn away what may not be; returns the target for the upstream."""
        headers, named = request.raw_headers, request.headers
        if request.version not in ((1, 0), (1, 1)):
            raise _Rejected("version_not_supported")
        if repeats_a_single_field(headers):
            raise _Rejected("duplicate_header")
        if not host_allowed(named.get("Host"), bound=self._settings.host):
            raise _Rejected("host_not_allowed")
        if "Origin" in named:
            raise _Rejected("origin_not_allowed")
        if "Via" in named and is_looped(headers):
            raise _Rejected("loop_detected")
        if "Upgrade" in named and b"websocket" in tokens(headers, b"upgrade"):
            raise _Rejected("upgrade_not_supported")
        if "Expect" in named and tokens(headers, b"expect") != [b"100-continue"]:
            raise _Rejected("bad_expectation")
        try:
            return self._upstream.target(request.raw_path)
        except BadTarget:
            raise _Rejected("bad_target") from None

    async def _read(self, visit: _Visit) -> bytes:
        """The whole body, within its size and time."""
        request = visit.request
        limit = self._settings.body_max_bytes
        if (request.content_length or 0) > limit:
            raise _Rejected("body_too_large")
        self._continue(request)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_s):
                while data := await request.content.readany():
                    size += len(data)
                    if size > limit:
                        raise _Rejected("body_too_large")
                    parts.append(data)
                    if size > FREE_BODY_BYTES:
                        await self._admit(visit)
        except TimeoutError:
            raise _Rejected("body_timeout") from None
        except web.RequestPayloadError:
            raise _Rejected("malformed_request") from None
        return b"".join(parts)

    async def _admit(self, visit: _Visit) -> None:
        if not visit.admitted:
            if not await self._admission.enter():
                raise _Rejected("overload")
            visit.admitted = True

    def _continue(self, request: web.BaseRequest) -> None:
        """Ask for the body, where the client waits to be asked."""
        transport = request.transport
        if transport is not None and request.version >= (1, 1) and "Expect" in request.headers:
            transport.write(_CONTINUE)

    def _is_draining(self) -> bool:
        return self._drain.draining

    # ------------------------------------------------------------------ the answer's marks

    def _marks(self, visit: _Visit, guard: Guard) -> list[Header]:
        fields = [
            *self._id_mark(visit),
            (b"x-streamguard-policy", self._policy.name.encode("ascii", "backslashreplace")),
            (b"x-streamguard-mode", self._policy.mode.encode("ascii")),
            (b"x-streamguard-status", guard.status.encode("ascii")),
        ]
        if guard.opaque_reason is not None:
            fields.append((b"x-streamguard-reason", guard.opaque_reason.encode("ascii")))
        return fields

    def _id_mark(self, visit: _Visit) -> list[Header]:
        return [(b"x-streamguard-id", visit.id.encode("ascii"))]

    def _reject(self, visit: _Visit, code: Code) -> None:
        visit.outcome = ANSWERS[code].outcome
        visit.reply.error(code, self._id_mark(visit))
        self._log.info(REQUEST_REJECTED, id=visit.id, code=code, http_status=ANSWERS[code].status)

    # ------------------------------------------------------------------ the record

    def _record(self, visit: _Visit) -> None:
        """Exactly one per request; a failure to record must not fail the request."""
        self.requests += 1
        try:
            report = self._report(visit)
            self._metrics.observe(report)
            self._log.info(STREAM_FINISHED, **finished(report, method=visit.request.method))
        except Exception as error:
            self.failed(error)

    def _report(self, visit: _Visit) -> StreamReport:
        http_status = visit.reply.status if visit.reply.begun else None
        duration_ms = self._ms(visit, self._loop.time())
        bridge = visit.bridge
        if visit.guard is not None:
            report = visit.guard.report(
                path=visit.path, http_status=http_status, duration_ms=duration_ms
            )
            # The Guard counts from its own beginning, which is when the body was read.
            late_ms = (visit.guarded_at - visit.started) * 1000
            return msgspec.structs.replace(
                report,
                outcome=visit.outcome or report.outcome,
                first_byte_ms=_later(report.first_byte_ms, late_ms),
                verdict_ms=_later(report.verdict_ms, late_ms),
            )
        passing = bridge if isinstance(bridge, Passing) else None
        return StreamReport(
            id=visit.id,
            path=visit.path,
            mode=self._policy.mode,
            outcome=visit.outcome or (passing and passing.outcome) or "internal_error",
            http_status=http_status,
            attempts=0 if passing is None else 1,
            sent_bytes=visit.reply.body_length,
            first_byte_ms=None if passing is None else self._ms(visit, passing.first_byte_at),
            duration_ms=duration_ms,
        )

    def _ms(self, visit: _Visit, at: float | None) -> float | None:
        return None if at is None else round((at - visit.started) * 1000, 3)


def _shown(raw_path: str) -> str:
    """The path for the record. The query may hold a key, and a target we refused may be one."""
    path = raw_path.partition("?")[0]
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _later(ms: float | None, late_ms: float) -> float | None:
    return None if ms is None else round(ms + late_ms, 3)
