"""The run: provider and proxy started, every stream at once, both stopped, their books read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from streamguard.demo.cases import RULE, Case, flags
from streamguard.demo.child import COMMAND, Child, ChildError, Record
from streamguard.demo.stream import Stream

LIMIT_S: Final = 50.0
"""For all streams together: something hangs that takes longer."""
BOOKS_S: Final = 1.0
"""For the provider to see a close that the client has heard of already."""


class Demo:
    """One run.

    Args:
        cases: the streams.
        speed: how much faster than recorded.
        recordings: the folder they are from; None: the package's.
        command: the proxy's command line up to `serve`.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        speed: float,
        recordings: Path | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.streams = [Stream(case) for case in cases]
        self.speed = speed
        self._command = command
        self._folder = [] if recordings is None else ["--recordings", str(recordings)]
        self._reports: dict[str, Record] = {}

    async def run(self) -> None:
        """Run it to its end.

        Raises:
            ChildError: provider or proxy could not be started, or did not end well.
        """
        provider = Child("the provider", lambda record: None)
        proxy = Child("the proxy", self._note)
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    await self._with(tasks, provider, proxy)
                finally:
                    try:
                        await proxy.stop()
                    finally:
                        await provider.stop()
        except* ChildError as group:
            raise group.exceptions[0] from None
        for stream in self.streams:  # records may come after the stream they are about
            stream.report = self._reports.get(stream.guard_id or "")

    async def _with(self, tasks: asyncio.TaskGroup, provider: Child, proxy: Child) -> None:
        simulate = [*COMMAND, "simulate", "--port", "0", "--speed", str(self.speed)]
        upstream = await provider.start(tasks, [*simulate, *self._folder])
        base = f"http://127.0.0.1:{upstream}"
        port = await proxy.start(
            tasks,
            [*self._command, "serve", "--port", "0", "--upstream", f"{base}/v1", *flags(RULE)],
        )
        timeout = aiohttp.ClientTimeout(total=LIMIT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            async with asyncio.TaskGroup() as clients:
                for stream in self.streams:
                    url = f"http://127.0.0.1:{port}{stream.case.path}"
                    clients.create_task(_client(session, url, stream))
            # The books are read while the proxy runs: its end would close what it left open.
            deadline = asyncio.get_running_loop().time() + BOOKS_S
            while not await self._read_books(session, f"{base}/sim/requests"):
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(BOOKS_S / 20)

    async def _read_books(self, session: aiohttp.ClientSession, url: str) -> bool:
        """Take the provider's entries over; whether every exchange is over for it too."""
        async with session.get(url) as answer:
            lines = msgspec.json.decode(await answer.read(), type=list[Record])
        by_id = {line["id"]: line for line in lines}
        for stream in self.streams:
            stream.line = by_id.get(stream.provider_id)
        return all(line["closed_by"] is not None for line in lines)

    def _note(self, record: Record) -> None:
        if record.get("event") == "stream_finished":
            self._reports[record["id"]] = record
            for stream in self.streams:
                if stream.guard_id == record["id"]:
                    stream.report = record


async def _client(session: aiohttp.ClientSession, url: str, stream: Stream) -> None:
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(url, data=stream.case.body, headers=headers) as answer:
            stream.guard_id = answer.headers.get("x-streamguard-id")
            stream.provider_id = answer.headers.get("x-request-id")
            if answer.status != 200:
                stream.problem = f"status {answer.status}"
            async for data in answer.content.iter_any():
                stream.receive(data)
    except (aiohttp.ClientError, TimeoutError) as error:
        stream.problem = type(error).__name__
    stream.over = True
