"""How many alternatives the upstream gives: asked of it, but only when a rule needs the answer.

One GET of the model list, with the credentials of the client whose request needs it and nothing
else of that request. It is asked at most once per `AGAIN_S`; whatever goes wrong leaves the
defaults in force, and the request then passes unwatched, counted as `too_many_alternatives`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from streamguard.core.capabilities import Limits, learn_limit
from streamguard.core.events import DialectName
from streamguard.proxy.headers import Headers, request_head
from streamguard.proxy.pool import Pool
from streamguard.proxy.target import BadTarget, Upstream
from streamguard.proxy.upstream import Ending, ResponseHead

AGAIN_S: Final = 600.0
ANSWER_S: Final = 5.0
ANSWER_MAX_BYTES: Final = 1024 * 1024
_CREDENTIALS: Final = frozenset(
    (b"authorization", b"api-key", b"x-api-key", b"openai-organization", b"openai-project")
)


class LimitFinder:
    """Knows the limits of one upstream, and finds them out where it must.

    Args:
        upstream: where the model list is.
        pool: its connections.
    """

    def __init__(self, upstream: Upstream, pool: Pool) -> None:
        self._upstream = upstream
        self._pool = pool
        self._asked_at: float | None = None
        self.limits = Limits()

    def learn(self, models_body: bytes) -> None:
        """Take note of a model list that passed by."""
        limit = learn_limit(models_body)
        if limit is not None:
            self.limits = Limits(chat=limit, completions=limit)

    async def find(self, dialect: DialectName, needed: int, headers: Headers) -> Limits:
        """The limits, asked for if a rule needs more than is known to be given."""
        now = asyncio.get_running_loop().time()
        fresh = self._asked_at is not None and now - self._asked_at < AGAIN_S
        if needed > self.limits.of(dialect) and not fresh:
            self._asked_at = now
            try:
                async with asyncio.timeout(ANSWER_S):
                    self.learn(await self._ask(headers))
            except (TimeoutError, OSError, BadTarget):
                pass  # the defaults hold
        return self.limits

    async def _ask(self, headers: Headers) -> bytes:
        own = tuple(pair for pair in headers if pair[0].lower() in _CREDENTIALS)
        target = self._upstream.target("/v1/models")
        head = request_head("GET", target, self._upstream.authority, own, identity=True)
        connection = await self._pool.open()
        answer = _Answer()
        try:
            connection.exchange(head, answer, bodiless=False, whole=True)
            return await answer.body
        except asyncio.CancelledError:
            connection.abort()
            raise


class _Answer:
    """A `Downstream` that gathers a small answer; anything else counts as none."""

    def __init__(self) -> None:
        self.body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._parts: list[bytes] = []
        self._size = 0
        self._good = False

    def head(self, head: ResponseHead) -> None:
        self._good = head.status == 200

    def data(self, data: bytes, *, last: bool) -> None:
        self._size += len(data)
        if self._good and self._size <= ANSWER_MAX_BYTES:
            self._parts.append(data)
        else:
            self._good = False

    def pause(self) -> None:
        pass  # nothing is sent but a head

    def resume(self) -> None:
        pass

    def done(self, ending: Ending) -> None:
        if not self.body.done():
            whole = self._good and ending == "clean"
            self.body.set_result(b"".join(self._parts) if whole else b"")
