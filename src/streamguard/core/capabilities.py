"""What an upstream takes and delivers: configured, or learned from what passed by.

Holds no clock: `now` is an argument, in seconds of whatever monotonic clock the shell uses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

import msgspec

from streamguard.core.dialects import DIALECTS, lenient
from streamguard.core.events import DialectName

REFUSAL_TTL_S: Final = 600.0
REFUSAL_SIZE: Final = 1024
REFUSAL_STATUSES: Final = frozenset((400, 403, 404, 422))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The most alternatives per token that an upstream takes."""

    chat: int = DIALECTS["chat"].DEFAULT_LIMIT
    completions: int = DIALECTS["completions"].DEFAULT_LIMIT

    def of(self, dialect: DialectName) -> int:
        """The limit for one dialect."""
        return self.chat if dialect == "chat" else self.completions


class RefusalMemory:
    """Remembers who refused logprobs, so that not every request pays for the same refusal.

    The least recently learned is forgotten first; an entry expires after `ttl_s`.
    """

    def __init__(self, *, ttl_s: float = REFUSAL_TTL_S, size: int = REFUSAL_SIZE) -> None:
        self._ttl_s = ttl_s
        self._size = size
        self._until: OrderedDict[Hashable, float] = OrderedDict()

    def remember(self, key: Hashable, now: float) -> None:
        """A request of this kind was refused."""
        self._until[key] = now + self._ttl_s
        self._until.move_to_end(key)
        if len(self._until) > self._size:
            self._until.popitem(last=False)

    def refused(self, key: Hashable, now: float) -> bool:
        """Whether a request of this kind was refused lately."""
        until = self._until.get(key)
        if until is None:
            return False
        if now >= until:
            del self._until[key]
            return False
        return True

    def __len__(self) -> int:
        return len(self._until)


def names_logprobs(body: bytes) -> bool:
    """Whether an error body is about our request for logprobs: it names them in a value.

    Strings anywhere in the JSON count, and keys whose value explains something (a text, a list,
    an object); a key with a plain value does not, since validators echo the request. A body that
    is no JSON counts as one string.
    """
    error = lenient.load(body)
    if error is None:
        return _names(body.decode("utf-8", "replace"))
    return _mentions(error)


def learn_limit(models_body: bytes) -> int | None:
    """`capabilities.max_logprobs` of a `/v1/models` answer: the smallest stated, or None."""
    answer = lenient.load(models_body)
    listed = answer.get("data") if isinstance(answer, dict) else None
    found: list[int] = []
    for model in listed if isinstance(listed, list) else ():
        stated = model.get("capabilities") if isinstance(model, dict) else None
        limit = stated.get("max_logprobs") if isinstance(stated, dict) else None
        if type(limit) is int and limit > 0:  # 0: a model without any, such as an embedder
            found.append(limit)
    return min(found, default=None)


def _names(text: str) -> bool:
    lowered = text.lower()
    return "logprob" in lowered or "log probabilit" in lowered


def _mentions(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if _names(item):
                return True
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            for key, inner in item.items():
                if isinstance(inner, (str, list, dict)):
                    pending += (key, inner)
    return False
