"""Recordings files with answers made up for a test; never to be taken for real ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.streams import Dialect, stream

LOW, HIGH = 0.2, 0.9
LENGTH = 80


def recording(
    name: str,
    probabilities: Sequence[float],
    *,
    correct: bool = True,
    dialect: Dialect = "chat",
    pace_ms: float = 2.0,
    **more: Any,
) -> dict[str, Any]:
    """One line: an answer whose tokens have these probabilities."""
    events = stream(dialect, probabilities)
    asked: dict[str, Any] = (
        {"messages": [{"role": "user", "content": name}], "logprobs": True, "top_logprobs": 1}
        if dialect == "chat"
        else {"prompt": name, "logprobs": 1}
    )
    return {
        "name": name,
        "dialect": dialect,
        "question": f"What about {name}?",
        "truth": "so",
        "correct": correct,
        "request": {"model": "made-up", "stream": True, **asked},
        "status": 200,
        "headers": [
            ["Content-Type", "text/event-stream"],
            ["Server", "made-up"],
            ["Transfer-Encoding", "chunked"],
        ],
        "events": [[number * pace_ms, data.decode()] for number, data in enumerate(events, 1)],
        "tokens": len(probabilities),
        **more,
    }


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    """A folder with these recordings."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "made-up.jsonl").write_text(text)
    return folder


def mixed(folder: Path, *, until: int) -> Path:
    """Each of the four fates, in both dialects: eight answers, named by their fate.

    Args:
        folder: where to.
        until: the first so many tokens are improbable in what is to be cut, probable in the rest.
    """
    lines = []
    for dialect in ("chat", "completions"):
        for low in (True, False):
            for correct in (True, False):
                fate = f"{'cut' if low else 'kept'}-{'right' if correct else 'wrong'}"
                course = [LOW if low else HIGH] * until + [0.8] * (LENGTH - until)
                line = recording(f"{fate}-{dialect}", course, correct=correct, dialect=dialect)
                lines.append(line)
    return write(folder, *lines)
