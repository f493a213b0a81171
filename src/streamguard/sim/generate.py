"""Answers made up on the spot: the OpenAI shapes, log-probabilities to order, words without sense.

Deterministic: one spec and one request give the same bytes, but for the id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from streamguard.sim.script import Generated
from streamguard.sim.stream import Ask, Dialect, Event, Stream, done, sse

CREATED: Final = 1_700_000_000
HEADERS: Final = (("Content-Type", "text/event-stream"),)
_LINE_ENDS: Final = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
_WORDS: Final = (
    *("The", "answer", "is", "not", "the", "one", "that", "you", "were", "looking", "for", "but"),
    *("it", "has", "the", "form", "of", "one", "."),
)


def generate(spec: Generated, ask: Ask, *, stream_id: str) -> Stream:
    """The answer to a request.

    Args:
        spec: what to make.
        ask: what was asked; decides about logprobs, choices and usage where the spec does not.
        stream_id: the `id` of every chunk.
    """
    maker = _Maker(spec, ask, stream_id)
    return Stream(HEADERS, maker.events(), spec.length * maker.choices)


class _Maker:
    def __init__(self, spec: Generated, ask: Ask, stream_id: str) -> None:
        self._spec = spec
        self._ask = ask
        self._dialect: Dialect = ask.dialect if spec.shape == "path" else spec.shape
        self._line_end = _LINE_ENDS[spec.line_end]
        self.choices = spec.choices or ask.choices or 1
        self._alternatives = ask.alternatives
        if ask.alternatives is not None and spec.alternatives is not None:
            self._alternatives = spec.alternatives
        prefix, kind = (
            ("chatcmpl", "chat.completion.chunk")
            if self._dialect == "chat"
            else ("cmpl", "text_completion")
        )
        self._head = {
            "id": f"{prefix}-{stream_id}",
            "object": kind,
            "created": CREATED,
            "model": ask.model,
        }

    def events(self) -> Iterator[Event]:
        spec = self._spec
        every = range(self.choices)
        at_ms = 0.0
        if self._dialect == "chat":
            for index in every:
                role = {"role": "assistant", "content": ""}
                yield Event(at_ms, self._chunk([self._choice(index, {"delta": role}, None)]))
        for first in range(1, spec.length + 1, spec.entries_per_event):
            numbers = range(first, min(first + spec.entries_per_event, spec.length + 1))
            at_ms = spec.pace_ms * numbers[-1]
            for index in every:
                yield Event(at_ms, self._tokens(index, numbers), len(numbers))
        nothing: dict[str, Any] = {"delta": {}} if self._dialect == "chat" else {"text": ""}
        for index in every:
            end = self._choice(index, nothing, None, spec.finish_reason)
            yield Event(at_ms, self._chunk([end]))
        if self._ask.usage:
            yield Event(at_ms, self._chunk([], usage=self._usage()))
        yield Event(at_ms, done(self._line_end))

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return sse({**self._head, "choices": choices, **more}, self._line_end)

    @staticmethod
    def _choice(
        index: int, text: dict[str, Any], logprobs: object, finish_reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, **text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _tokens(self, index: int, numbers: range) -> bytes:
        words = [f" {_WORDS[(number - 1) % len(_WORDS)]}" for number in numbers]
        joined = "".join(words)
        text = {"delta": {"content": joined}} if self._dialect == "chat" else {"text": joined}
        logprobs = None
        if self._alternatives is not None:
            scored = [(word, self._spec.logprob(n)) for word, n in zip(words, numbers, strict=True)]
            if self._dialect == "chat":
                logprobs = {"content": [self._entry(word, value) for word, value in scored]}
            else:
                logprobs = self._arrays(scored, numbers[0])
        return self._chunk([self._choice(index, text, logprobs)])

    def _entry(self, word: str, logprob: float) -> dict[str, Any]:
        return {
            **_listed(word, logprob),
            "top_logprobs": [_listed(*other) for other in self._ranked(word, logprob)],
        }

    def _arrays(self, scored: list[tuple[str, float]], first: int) -> dict[str, Any]:
        before = sum(len(_WORDS[n % len(_WORDS)]) + 1 for n in range(first - 1))
        offsets = []
        for word, _ in scored:
            offsets.append(before)
            before += len(word)
        return {
            "tokens": [word for word, _ in scored],
            "token_logprobs": [value for _, value in scored],
            "top_logprobs": [dict(self._ranked(word, value)) for word, value in scored],
            "text_offset": offsets,
        }

    def _ranked(self, word: str, logprob: float) -> list[tuple[str, float]]:
        """The token and others, best first: each other has half of what is left over."""
        if not self._alternatives:
            return []
        left = max(1.0 - math.exp(logprob), 1e-9)
        others = [
            (f" word{rank}", math.log(left) - rank * math.log(2))
            for rank in range(1, self._alternatives)
        ]
        return sorted([(word, logprob), *others], key=lambda pair: -pair[1])

    def _usage(self) -> dict[str, int]:
        completion = self._spec.length * self.choices
        return {"prompt_tokens": 1, "completion_tokens": completion, "total_tokens": completion + 1}


def _listed(word: str, logprob: float) -> dict[str, Any]:
    return {"token": word, "logprob": logprob, "bytes": list(word.encode())}
