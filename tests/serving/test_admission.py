"""Admission: so many at once, a short queue, and a clear no."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamguard.serving.admission import Admission

Test = Callable[[], Awaitable[None]]


def run(test: Test) -> None:
    """Run a coroutine to its end, with a bound on its time."""
    asyncio.run(asyncio.wait_for(_run(test), 10))


async def _run(test: Test) -> None:
    await test()


async def turn() -> None:
    """Let everybody else run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_limit_holds() -> None:
    """A place more than there are is refused at once where nobody may wait."""

    async def test() -> None:
        admission = Admission(limit=2, queue_max=0, wait_s=9)
        assert [await admission.enter() for _ in range(3)] == [True, True, False]
        admission.leave()
        assert await admission.enter()
        assert admission.taken == 2

    run(test)


def test_waiting_is_first_come_first_served() -> None:
    """A place that is given back goes to the longest waiting, not to a newcomer."""

    async def test() -> None:
        admission = Admission(limit=1, queue_max=2, wait_s=9)
        assert await admission.enter()
        order: list[str] = []

        async def wait(name: str) -> None:
            assert await admission.enter()
            order.append(name)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait("a"))
            await turn()
            tasks.create_task(wait("b"))
            await turn()
            assert not await admission.enter()  # the queue is full
            admission.leave()
            await turn()
            assert (order, admission.taken) == (["a"], 1)
            admission.leave()
        assert (order, admission.taken) == (["a", "b"], 1)

    run(test)


def test_waiting_ends() -> None:
    """After the wait the answer is no, and nothing is left behind."""

    async def test() -> None:
        admission = Admission(limit=1, queue_max=1, wait_s=0.01)
        assert await admission.enter()
        assert not await admission.enter()
        admission.leave()
        assert admission.taken == 0
        assert await admission.enter()

    run(test)


@pytest.mark.parametrize("given_first", [False, True])
def test_who_leaves_the_queue_takes_no_place_along(given_first: bool) -> None:
    """Cancelled while waiting, also in the moment in which the place is given."""

    async def test() -> None:
        admission = Admission(limit=1, queue_max=2, wait_s=9)
        assert await admission.enter()
        waiting = asyncio.get_running_loop().create_task(admission.enter())
        await turn()
        if given_first:
            admission.leave()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if not given_first:
            admission.leave()
        assert admission.taken == 0
        assert await admission.enter()

    run(test)
