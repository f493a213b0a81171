"""The plain aiohttp relay: what one writes in an afternoon. Forwards, and looks at nothing.

    python -m benchmarks.relay.plain UPSTREAM_PORT

Prints its port when it listens. It is told to notice clients that leave (aiohttp does not by
itself), runs on uvloop where that is installed, as streamguard does, and writes no access log.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Final

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

_DROPPED: Final = frozenset(("host", "content-length", "transfer-encoding", "connection"))


class Plain:
    """Forwards every request to one upstream.

    Args:
        upstream: its port on this machine.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = f"http://127.0.0.1:{upstream}"
        self._session = ClientSession(
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=None),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
        )

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Forward one request."""
        body = await request.read()
        fields = [(k, v) for k, v in request.headers.items() if k.lower() not in _DROPPED]
        async with self._session.request(
            request.method, self._upstream + request.raw_path, headers=fields, data=body
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response

    async def close(self) -> None:
        """Close the connections to the upstream."""
        await self._session.close()


async def serve(upstream: int) -> None:
    """Serve until SIGTERM."""
    plain = Plain(upstream)
    runner = web.ServerRunner(web.Server(plain, handler_cancellation=True, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await stop.wait()
    await runner.cleanup()
    await plain.close()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import Loop
    except ImportError:
        return None
    return Loop


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_loop_factory()) as main_runner:
        main_runner.run(serve(int(sys.argv[1])))
