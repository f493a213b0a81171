"""The provider: a listening socket, two answering paths, a list of models, and its books.

POST /v1/chat/completions, /v1/completions     streamed, or one JSON answer
GET  /v1/models                                what model names there are
GET  /sim/requests                             what was sent, and when a close was seen
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from streamguard.errors import ConfigError
from streamguard.sim import faults, play
from streamguard.sim.connection import Connection
from streamguard.sim.faults import FAULTS
from streamguard.sim.generate import CREATED, HEADERS, generate
from streamguard.sim.http import Request
from streamguard.sim.ledger import Ledger, Line
from streamguard.sim.recordings import Recording
from streamguard.sim.script import Model, Script, resolve
from streamguard.sim.stream import PATHS, Ask, Stream, error_object, read_ask
from streamguard.sim.unary import assemble


class Provider:
    """A running provider, as an async context manager.

    Args:
        recordings: by name.
        script: further models.
        host, port: where to listen; port 0 takes any.
        tls: to speak TLS.
    """

    def __init__(
        self,
        recordings: Mapping[str, Recording],
        script: Script | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._recordings = recordings
        self._script = script or Script()
        self._host = host
        self._port = port
        self._tls = tls
        self._ledger = Ledger()
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._accepted = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accept, self._host, self._port, ssl=self._tls, backlog=1024
        )
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._running):
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def requests(self) -> list[dict[str, Any]]:
        """The books, as `GET /sim/requests` gives them."""
        return self._ledger.as_list()

    # ------------------------------------------------------------------ connections

    def _accept(self) -> asyncio.Protocol:
        self._accepted += 1
        rule = self._script.on_accept
        instead = rule.kind if rule is not None and self._accepted <= rule.connections else None
        return Connection(self._spawn, self._answer, instead=instead)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    # ------------------------------------------------------------------ requests

    async def _answer(self, connection: Connection, request: Request) -> None:
        match request.method, request.path:
            case "POST", path if path in PATHS:
                await self._complete(connection, request)
            case "GET", "/v1/models":
                await play.send_json(connection, 200, self._models(), ())
            case "GET", "/sim/requests":
                await play.send_json(connection, 200, self.requests(), ())
            case _, path:
                problem = error_object(f"nothing here: {path[:200]}", code="not_found")
                await play.send_json(connection, 404, problem, ())

    async def _complete(self, connection: Connection, request: Request) -> None:
        try:
            ask = read_ask(PATHS[request.path], request.body)
        except msgspec.DecodeError as error:
            problem = error_object(f"the body can't be used: {error}", code="invalid_body")
            await play.send_json(connection, 400, problem, ())
            return
        line = connection.line = self._ledger.open(model=ask.model, path=request.path)
        headers = [("x-request-id", line.id)]
        try:
            model = resolve(ask.model, self._script, self._recordings)
        except ConfigError as error:
            problem = error_object(str(error), code="model_not_found", param="model")
            await play.send_json(connection, 404, problem, headers)
            return
        unfit = self._unfit(connection, ask, model)
        if unfit is not None:
            problem = error_object(unfit, code="unfit", param="model")
            await play.send_json(connection, 400, problem, headers)
            return
        stream, speed = self._stream(ask, model, line)
        line.tokens_recorded = stream.tokens
        if await play.before(connection, ask, model.fault, headers):
            return
        if ask.stream:
            await play.play(
                connection,
                stream,
                ask,
                line=line,
                fault=model.fault,
                speed=speed,
                headers=headers,
            )
        else:
            await self._whole(connection, stream, line, speed, headers)

    @staticmethod
    async def _whole(
        connection: Connection, stream: Stream, line: Line, speed: float, headers: play.Headers
    ) -> None:
        """The answer as one JSON object, when its last event would have come."""
        events = list(stream.events)
        await asyncio.sleep(events[-1].at_ms / 1000 / speed)
        await play.send_json(connection, 200, assemble(events), headers)
        line.sent(stream.tokens, connection.now)

    def _unfit(self, connection: Connection, ask: Ask, model: Model) -> str | None:
        """Why this model can't answer this request."""
        if model.recorded is not None:
            dialect = self._recordings[model.recorded].dialect
            if dialect != ask.dialect:
                return f"{model.recorded} was recorded on the other path ({dialect})"
        if isinstance(model.fault, faults.TlsTruncate) and not connection.is_tls:
            return "tls_truncate needs TLS: start the provider with a certificate"
        if isinstance(model.fault, faults.HalfClose) and connection.is_tls:
            return "half_close does not exist over TLS"
        return None

    def _stream(self, ask: Ask, model: Model, line: Line) -> tuple[Stream, float]:
        """The answer to come, and how much faster than its times."""
        if model.recorded is None:
            return generate(model.generated, ask, stream_id=line.id), 1.0
        recording = self._recordings[model.recorded]
        events = recording.send(logprobs=ask.alternatives is not None)
        headers = recording.end_to_end_headers or HEADERS
        speed = model.speed or self._script.speed
        return Stream(headers, events, recording.tokens), speed

    def _models(self) -> dict[str, Any]:
        names = [
            "generated",
            *(f"recorded/{name}" for name in self._recordings),
            *(f"fault/{kind}" for kind in FAULTS),
            *self._script.models,
        ]
        return {
            "object": "list",
            "data": [
                {"id": name, "object": "model", "created": CREATED, "owned_by": "simulated"}
                for name in names
            ],
        }
