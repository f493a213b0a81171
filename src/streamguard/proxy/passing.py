"""Everything that is not guarded passes through: byte for byte, streaming both ways.

It uses the same upstream leg as guarded streams, not aiohttp's client. That one re-sends GETs by
itself on a stale connection, normalises header case, accepts framing that llhttp refuses, and
would be a second pool with second limits; with one leg there is one answer to each of those.

The response keeps the upstream's framing where it has a declared length and is chunked otherwise;
redirects, cookies and encodings are the client's business. A body that breaks off upstream breaks
off here. Invariant: in neither direction more than one read waits in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

from streamguard.core.events import Outcome
from streamguard.proxy.bridge import Bridge, Failures
from streamguard.proxy.headers import OWN_PREFIX, end_to_end
from streamguard.proxy.pool import Pool
from streamguard.proxy.upstream import Ending, ResponseHead
from streamguard.serving.answers import ANSWERS, Code
from streamguard.serving.reply import Reply

SMALL_ANSWER_BYTES: Final = 256 * 1024
"""A copy of an answer that someone wants to read is kept up to this size."""

_BODILESS: Final = frozenset((204, 304))


class Passing(Bridge):
    """Carries one request that nobody judges.

    Args:
        reply: the answer to the client.
        pool: opens upstream connections.
        method: of the request.
        request_head: for the upstream.
        body: the request body where it was read already; None streams what the client sends.
        chunked: the streamed body goes out in chunks (the client declared no length).
        first_byte_s, idle_s, lifetime_s: the clocks.
        learn: gets the body of a small, whole, uncompressed JSON answer with status 200.
        connect_s: how long a connection may take.
        failures: told of exceptions.
    """

    def __init__(
        self,
        reply: Reply,
        pool: Pool,
        *,
        method: str,
        request_head: bytes,
        body: bytes | None,
        chunked: bool,
        first_byte_s: float,
        idle_s: float,
        lifetime_s: float,
        learn: Callable[[bytes], None] | None,
        connect_s: float,
        failures: Failures,
    ) -> None:
        super().__init__(reply, pool, connect_s=connect_s, failures=failures)
        self._method = method
        self._request_head = request_head
        self._body = body
        self._chunked = chunked
        self._idle_s = idle_s
        self._first_byte_s = first_byte_s
        self._learn = learn
        self._copy: list[bytes] | None = None
        self._copied_bytes = 0
        self._heard_at = self._loop.time()
        self._ends_at = self._heard_at + lifetime_s
        self._waits_for_head = False
        self._uploads = asyncio.Event()
        self._uploads.set()
        self.outcome: Outcome | None = None
        self.first_byte_at: float | None = None

    async def run(self, request: web.BaseRequest, expects: Callable[[], None]) -> None:
        """Carry the request to its end.

        Args:
            request: its body is streamed, unless it was given.
            expects: called before the first byte of the body is read (`100-continue`).
        """
        self._rearm()
        connection = await self._open()
        if connection is None:
            return
        streams = self._body is None and request.body_exists
        self._turn = self._loop.create_future()
        self._heard_at = self._loop.time()
        self._waits_for_head = not streams
        connection.exchange(
            self._request_head + (self._body or b""),
            self,
            bodiless=self._method == "HEAD",
            whole=not streams,
        )
        self._rearm()
        if not streams:
            await self._turn
            return
        expects()
        async with asyncio.TaskGroup() as tasks:
            upload = tasks.create_task(self._upload(request))
            await self._turn
            upload.cancel()

    # ------------------------------------------------------------------ Downstream

    def head(self, head: ResponseHead) -> None:
        """See `Downstream`."""
        self._heard_at = self._loop.time()
        self._waits_for_head = False
        empty = self._method == "HEAD" or head.status in _BODILESS
        self._reply.begin(
            head.status,
            head.reason,
            [p for p in end_to_end(head.headers) if not p[0].lower().startswith(OWN_PREFIX)],
            length=head.length,
            empty=empty,
        )
        self._reply.flush()
        if self._learn is not None and head.status == 200 and _is_plain_json(head):
            self._copy = []
        self._rearm()

    def data(self, data: bytes, *, last: bool) -> None:
        """See `Downstream`."""
        self._heard_at = self._loop.time()
        if self.first_byte_at is None:
            self.first_byte_at = self._heard_at
        self._reply.write(data, more=last)
        if self._copy is not None:
            self._copied_bytes += len(data)
            self._copy.append(data)
            if self._copied_bytes > SMALL_ANSWER_BYTES:
                self._copy = None

    def pause(self) -> None:
        """See `Downstream`."""
        self._uploads.clear()

    def resume(self) -> None:
        """See `Downstream`."""
        self._heard_at = self._loop.time()
        self._uploads.set()

    def done(self, ending: Ending) -> None:
        """See `Downstream`."""
        self._connection = None
        if ending != "clean" or not self._reply.begun:
            self._fail("upstream_truncated")
            return
        self.outcome = "complete"
        self._reply.finish(clean=True)
        self._stop()
        if self._copy is not None and self._learn is not None:
            try:
                self._learn(b"".join(self._copy))
            except Exception as error:
                self._failures.failed(error)

    # ------------------------------------------------------------------ Bridge

    def _fail(self, outcome: Outcome) -> None:
        if self.over:
            return
        self._drop()
        self.outcome = outcome
        if self._reply.begun:
            self._reply.finish(clean=False)
        elif outcome != "client_gone":
            self._reply.error(_code(outcome))
        self._stop()

    def _deadline(self) -> float | None:
        silence = self._first_byte_s if self._waits_for_head else self._idle_s
        return min(self._ends_at, self._heard_at + silence)

    def _late(self, now: float) -> None:
        if now >= self._ends_at:
            self._fail("timeout_lifetime")
        else:
            self._fail("timeout_first_byte" if self._waits_for_head else "timeout_idle")

    # ------------------------------------------------------------------ the request body

    async def _upload(self, request: web.BaseRequest) -> None:
        """Send the client's body on as it comes, no faster than the upstream takes it."""
        try:
            while data := await request.content.readany():
                await self._uploads.wait()
                connection = self._connection
                if connection is None:
                    return
                self._heard_at = self._loop.time()
                connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            connection = self._connection
            if connection is not None:
                if self._chunked:
                    connection.write(b"0\r\n\r\n")
                connection.request_sent()
                self._heard_at = self._loop.time()
                self._waits_for_head = not self._reply.begun
                self._rearm()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # The client's framing broke, or it left: what the upstream has is not a request.
            if not isinstance(error, (web.RequestPayloadError, ConnectionError)):
                self._failures.failed(error)
            self._fail("bad_request")


def _code(outcome: Outcome) -> Code:
    """The fixed answer for an end that came before the upstream's head."""
    if outcome == "bad_request":
        return "malformed_request"
    for code in ANSWERS:
        if code == outcome:
            return code
    return "internal_error"


def _is_plain_json(head: ResponseHead) -> bool:
    kind = (head.first(b"content-type") or "").partition(";")[0].strip().lower()
    return kind == "application/json" and head.first(b"content-encoding") is None
