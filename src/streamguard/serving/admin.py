"""`/livez`, `/readyz` and `/metrics`, on a port of their own.

Never on the proxy's port: a path that means one thing here must not mean another upstream. It
listens on the loopback interface only and answers only to loopback names, so that no web page can
be made to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from streamguard.serving.listener import Door
from streamguard.serving.reply import Reply

ADMIN_HOST: Final = "127.0.0.1"
_NAMES: Final = frozenset(("127.0.0.1", "localhost"))
_TEXT: Final = b"text/plain; charset=utf-8"


class Admin:
    """Answers requests on the admin port.

    Args:
        ready: whether new requests should be sent to the server.
        metrics: content type and text of the metrics page.
    """

    def __init__(
        self, *, ready: Callable[[], bool], metrics: Callable[[], tuple[bytes, bytes]]
    ) -> None:
        self._ready = ready
        self._metrics = metrics

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        door = request.protocol
        assert isinstance(door, Door)
        reply = Reply(request)
        status, kind, body = self._page(request)
        empty = request.method == "HEAD"
        reply.begin(
            status,
            b"",
            [(b"content-type", kind), (b"content-length", b"%d" % len(body))],
            length=len(body),
            empty=empty,
        )
        reply.finish(clean=True, data=body)
        door.request_over()
        return reply

    def _page(self, request: web.BaseRequest) -> tuple[int, bytes, bytes]:
        host = request.headers.get("Host", "localhost").rpartition(":")
        if (host[0] or host[2]).lower() not in _NAMES or "Origin" in request.headers:
            return 403, _TEXT, b"forbidden\n"
        if request.method not in ("GET", "HEAD"):
            return 405, _TEXT, b"method not allowed\n"
        match request.raw_path.partition("?")[0]:
            case "/livez":
                return 200, _TEXT, b"ok\n"
            case "/readyz":
                return (200, _TEXT, b"ready\n") if self._ready() else (503, _TEXT, b"draining\n")
            case "/metrics":
                kind, page = self._metrics()
                return 200, kind, page
            case _:
                return 404, _TEXT, b"not found\n"
