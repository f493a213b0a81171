"""Draining: nothing new, time for what runs, then an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from streamguard.serving.drain import Drain

WIDE_S = 5.0


class Request:
    """A request in progress; told to end, it leaves or it does not."""

    def __init__(self, drain: Drain, *, obeys: bool = True) -> None:
        self._drain = drain
        self._obeys = obeys
        self.told = 0
        drain.add(self)

    def shutdown(self) -> None:
        self.told += 1
        if self._obeys:
            self._drain.remove(self)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run with a bound on its time."""

    async def bounded() -> None:
        async with asyncio.timeout(WIDE_S):
            await test()

    asyncio.run(bounded())


def test_ready_means_serving_and_not_draining() -> None:
    """Neither before the start nor after the signal."""

    async def test() -> None:
        drain = Drain(drain_s=9, on_drain=lambda _: None)
        seen = [drain.ready]
        drain.serving()
        seen.append(drain.ready)
        drain.signal()
        seen.append(drain.ready)
        assert seen == [False, True, False]

    run(test)


def test_an_idle_server_stops_at_once() -> None:
    """Nothing runs: no waiting, and the word is given once."""

    async def test() -> None:
        said: list[int] = []
        drain = Drain(drain_s=WIDE_S * 9, on_drain=said.append)
        drain.signal()
        await drain.finished()
        assert said == [0]

    run(test)


def test_what_runs_may_finish() -> None:
    """The end comes with the last request, which is not told to hurry."""

    async def test() -> None:
        said: list[int] = []
        drain = Drain(drain_s=WIDE_S * 9, on_drain=said.append)
        requests = [Request(drain), Request(drain)]
        drain.signal()
        for request in requests:
            drain.remove(request)
        await drain.finished()
        assert (said, [request.told for request in requests]) == ([2], [0, 0])

    run(test)


def test_after_the_time_everybody_is_told() -> None:
    """Once, also those who come later; who does not leave is not waited for."""

    async def test() -> None:
        drain = Drain(drain_s=0.01, on_drain=lambda _: None)
        good, deaf = Request(drain), Request(drain, obeys=False)
        drain.signal()
        await drain.finished()
        late = Request(drain)
        assert (good.told, deaf.told, late.told) == (1, 1, 1)
        assert drain.time_is_up

    run(test)


def test_a_second_signal_skips_the_waiting() -> None:
    """Impatience is heard; the word is still given only once."""

    async def test() -> None:
        said: list[int] = []
        drain = Drain(drain_s=WIDE_S * 9, on_drain=said.append)
        request = Request(drain)
        drain.signal()
        drain.signal()
        await drain.finished()
        assert (said, request.told) == ([1], 1)

    run(test)
