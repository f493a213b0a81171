"""A command of ours in its own process: started, listened to, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from streamguard.errors import StreamguardError

START_S: Final = 20.0
STOP_S: Final = 10.0
COMMAND: Final = (sys.executable, "-m", "streamguard")
_LINE_BYTES: Final = 1 << 20
_QUOTED: Final = 500

Record = dict[str, Any]


class ChildError(StreamguardError):
    """A process did not do what it was started for."""


class Child:
    """One running command that writes JSON lines.

    Args:
        name: what complaints call it.
        on_record: called with each line.
    """

    def __init__(self, name: str, on_record: Callable[[Record], None]) -> None:
        self.name = name
        self._on_record = on_record
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = b""
        self._all_read = asyncio.Event()
        self._listening: asyncio.Future[int] | None = None

    async def start(self, tasks: asyncio.TaskGroup, command: Sequence[str]) -> int:
        """Start it, and wait until it listens.

        Args:
            tasks: what reads its output runs here; it ends when the process does.
            command: the words of its command line.

        Returns:
            Its port.

        Raises:
            ChildError: it ended, or took too long.
        """
        self._listening = asyncio.get_running_loop().create_future()
        # Settings of the user's own deployment are none of the demo's.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMGUARD_")}
        self._process = await asyncio.create_subprocess_exec(
            *command,
            env=clean,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        tasks.create_task(self._read_records(self._process))
        tasks.create_task(self._read_complaints(self._process))
        try:
            async with asyncio.timeout(START_S):
                return await self._listening
        except TimeoutError:
            raise ChildError(f"{self.name} did not start in {START_S:.0f} s") from None

    async def stop(self) -> None:
        """End it and wait until everything it wrote has been read.

        Raises:
            ChildError: it did not end well.
        """
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        await self._all_read.wait()
        if code != 0:
            said = self._stderr.decode(errors="replace").strip()[-_QUOTED:]
            raise ChildError(f"{self.name} ended with {code}: {said or 'without a word'}")

    async def _read_records(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert self._listening is not None
        async for line in process.stdout:
            try:
                record = msgspec.json.decode(line, type=Record)
            except msgspec.DecodeError as error:
                raise ChildError(f"{self.name} wrote a line that is no record") from error
            if not self._listening.done() and "port" in record:
                self._listening.set_result(record["port"])
            self._on_record(record)
        if not self._listening.done():
            self._listening.set_exception(ChildError(f"{self.name} ended before it listened"))

    async def _read_complaints(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        try:
            self._stderr = await process.stderr.read()
        finally:
            self._all_read.set()
