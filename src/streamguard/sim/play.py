"""Plays an answer on a connection: each event at its time, and the fault where it belongs.

A fault shapes one of four places: what happens before the answer (`before`), how bytes are written
(`_Pipe`), how the body is framed and coded (`_Framing`), and what follows which event (the loop in
`play`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from streamguard.sim import faults
from streamguard.sim.codings import Coder, coder
from streamguard.sim.connection import ClosedError, Connection
from streamguard.sim.faults import Fault
from streamguard.sim.http import LAST_CHUNK, chunk, head
from streamguard.sim.ledger import Line
from streamguard.sim.stream import Ask, Event, Stream, done, error_object, sse

_TICKS_PER_S: Final = 20
"""In so many pieces a second a limited bandwidth is used."""
_REFUSED: Final = error_object(
    "logprobs are not supported by this model", code="unsupported", param="logprobs"
)
_FAILED: Final = error_object("the model failed", code="server_error")
_LIE_BYTES: Final = 1000
_LIE_AT_CHUNK: Final = 2

Headers = Sequence[tuple[str, str]]


class _Pipe:
    """The connection, as narrow or as short as a fault makes it."""

    def __init__(self, connection: Connection, fault: Fault | None) -> None:
        self._connection = connection
        self._fault = fault
        self._left = fault.bytes if isinstance(fault, faults.LimitData) else None

    async def write(self, data: bytes) -> None:
        match self._fault:
            case faults.Slicer(bytes=size, pause_ms=pause_ms):
                await self._pieces(data, size, pause_ms / 1000)
            case faults.Bandwidth(bytes_per_s=rate):
                size = max(1, rate // _TICKS_PER_S)
                await self._pieces(data, size, size / rate)
            case faults.LimitData():
                assert self._left is not None
                await self._connection.write(data[: self._left])
                self._left -= len(data)
                if self._left <= 0:
                    self._connection.finish()
                    raise ClosedError
            case _:
                await self._connection.write(data)

    async def _pieces(self, data: bytes, size: int, pause_s: float) -> None:
        for at in range(0, len(data), size):
            await self._connection.write(data[at : at + size])
            await asyncio.sleep(pause_s)


class _Framing:
    """Where the body ends, and in which coding it comes."""

    def __init__(self, fault: Fault | None, events: list[Event] | None) -> None:
        self.fields: list[tuple[str, str]] = []
        self.closes = True
        """Nothing can follow on this connection."""
        self._chunked = False
        self._broken_chunk = False
        self._chunks = 0
        self._coder: Coder | None = None
        match fault:
            case faults.SlowClose() | faults.TlsTruncate():
                self.fields.append(("Connection", "close"))
            case faults.LieFraming(how="long" | "short" as how):
                assert events is not None
                real = sum(len(event.data) for event in events)
                self._length(real + _LIE_BYTES if how == "long" else real // 2)
            case faults.LieFraming(how="both"):
                self._length(_LIE_BYTES)
                self._chunk()
            case faults.LieFraming(how="chunk"):
                self._broken_chunk = True
                self._chunk()
            case faults.Encode(coding=coding):
                self._coder = coder(coding)
                self.fields.append(("Content-Encoding", coding))
                self._chunk()
                self.closes = False
            case _:
                self._chunk()
                self.closes = False

    def _length(self, value: int) -> None:
        self.fields.append(("Content-Length", str(value)))

    def _chunk(self) -> None:
        self._chunked = True
        self.fields.append(("Transfer-Encoding", "chunked"))

    def event(self, data: bytes) -> bytes:
        if self._coder is not None:
            data = self._coder.encode(data)
        if not self._chunked:
            return data
        self._chunks += 1
        if self._broken_chunk and self._chunks > _LIE_AT_CHUNK:
            return b"size\r\n" + data + b"\r\n"
        return chunk(data)

    def end(self) -> bytes:
        if not self._chunked:
            return b""
        rest = self._coder.end() if self._coder is not None else b""
        return (chunk(rest) if rest else b"") + LAST_CHUNK


async def send_json(connection: Connection, status: int, value: object, headers: Headers) -> None:
    """One whole JSON answer."""
    body = msgspec.json.encode(value)
    fields = [("Content-Type", "application/json"), *headers, ("Content-Length", str(len(body)))]
    await connection.write(head(status, fields) + body)


async def before(connection: Connection, ask: Ask, fault: Fault | None, headers: Headers) -> bool:
    """What a fault does before an answer begins.

    Returns:
        Whether that was all: there is no answer to play any more.
    """
    match fault:
        case faults.Latency(ms=ms):
            await asyncio.sleep(ms / 1000)
        case faults.AcceptThenSilent():
            await connection.silence()
        case faults.RstOnAccept():
            connection.reset()
            return True
        case faults.RefuseLogprobs(status=status) if ask.alternatives is not None:
            if status != 200:
                await send_json(connection, status, _REFUSED, headers)
                return True
        case faults.ErrorFirst(status=status) if status != 200:
            await send_json(connection, status, _FAILED, headers)
            return True
        case _:
            pass
    return False


def _instead(stream: Stream, ask: Ask, fault: Fault | None) -> Iterator[Event]:
    """The events that come: the stream's own, or what a fault puts in their place."""
    match fault:
        case faults.RefuseLogprobs() if ask.alternatives is not None:
            yield Event(0, sse(_REFUSED))
            yield Event(0, done())
        case faults.ErrorFirst():
            yield Event(0, sse(_FAILED))
            yield Event(0, done())
        case faults.ErrorMidstream(after=after):
            for number, event in enumerate(stream.events):
                if number == after:
                    break
                yield event
            yield Event(0, sse(_FAILED))
            yield Event(0, done())
        case faults.NoDone():
            yield from (event for event in stream.events if b"[DONE]" not in event.data)
        case _:
            yield from stream.events


async def play(
    connection: Connection,
    stream: Stream,
    ask: Ask,
    *,
    line: Line,
    fault: Fault | None,
    speed: float,
    headers: Headers,
) -> None:
    """Stream an answer.

    Args:
        connection: to whom.
        stream: what.
        ask: the request.
        line: where it is entered in the books.
        fault: what goes wrong.
        speed: event times are divided by it.
        headers: further ones of the answer.
    """
    begun = connection.now
    pipe = _Pipe(connection, fault)
    coming: Iterator[Event] | list[Event] = _instead(stream, ask, fault)
    if isinstance(fault, faults.LieFraming):
        coming = list(coming)
    framing = _Framing(fault, coming if isinstance(coming, list) else None)
    await pipe.write(head(200, [*stream.headers, *headers, *framing.fields]))
    stops_after = getattr(fault, "after", None)
    if stops_after == 0:
        await _stop(connection, fault)
    for number, event in enumerate(coming, 1):
        # Sleeps even where nothing is to be waited for: a close must be seen between two events.
        due = begun + event.at_ms / 1000 / speed
        await asyncio.sleep(max(0.0, due - connection.now))
        await pipe.write(framing.event(event.data))
        line.sent(event.tokens, connection.now)
        if number == stops_after:
            await _stop(connection, fault)
    if stops_after is not None:
        await _stop(connection, fault)
    await pipe.write(framing.end())
    if isinstance(fault, faults.SlowClose):
        await asyncio.sleep(fault.ms / 1000)
    if framing.closes:
        connection.finish()


async def _stop(connection: Connection, fault: Fault | None) -> None:
    """Break off here, if that is what the fault is about."""
    match fault:
        case faults.Timeout():
            await connection.silence()
        case faults.ResetPeer():
            connection.reset()
        case faults.TlsTruncate():
            connection.cut()
        case faults.HalfClose():
            connection.shut_writing()
            await connection.silence()
        case _:
            return
    raise ClosedError
