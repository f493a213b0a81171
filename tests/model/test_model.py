"""A real model behind the installed `serve`, used through the official SDK.

Three claims, each in both dialects: an answer that is not cut is the answer; a cut stops the model;
so does a client that leaves. The second and third are shown by the server's side alone: its own
token counter where it has one, the length of what its cache holds where its log tells, and in any
case the CPU time of its processes. What the client saw proves neither.

One request at a time and ASCII prompts: llama-cpp-python breaks off one stream when a second
request comes, and loses text of several bytes per token when asked for logprobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import openai
import pytest
from tests.model.server import ALIAS, END_TOKENS, ModelServer
from tests.support.command import Command

Dialect: TypeAlias = Literal["chat", "completions"]
Guarded: TypeAlias = Callable[..., Command]
Chunk: TypeAlias = dict[str, Any]

# A first token takes seconds where the prompt is new and other work runs on the machine.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.parametrize("dialect", ["chat", "completions"]),
]

PROMPT = "Write a long story about a fox who lives by the sea."
NEVER = ("--signal", "mean_prob", "--below", "0.000001", "--first", "5")
# A story does not go on with five tokens that are all but certain.
ALWAYS = ("--signal", "min_prob", "--below", "1", "--first", "5")
POSITION = 5
LONG = 400
# The event under way, the one the server may have begun, and how coarse the counters are.
SLACK = 8
CONTROL = 40


def ask(
    client: openai.OpenAI, dialect: Dialect, *, tokens: int, endless: bool = False, **more: Any
) -> openai.Stream[Any]:
    """Start a stream at temperature 0; `endless` bans the tokens that would end it."""
    common: dict[str, Any] = {"model": ALIAS, "max_tokens": tokens, "temperature": 0, **more}
    if endless:
        common["logit_bias"] = dict.fromkeys(END_TOKENS, -100)
    stream: openai.Stream[Any]
    if dialect == "chat":
        stream = client.chat.completions.create(
            messages=[{"role": "user", "content": PROMPT}], stream=True, **common
        )
    else:
        stream = client.completions.create(prompt=f"{PROMPT}\n\n", stream=True, **common)
    return stream


@contextmanager
def sdk(base: str) -> Iterator[openai.OpenAI]:
    """The official client; a retry would be a second request."""
    with openai.OpenAI(base_url=base, api_key="sk-model-test", max_retries=0) as client:
        yield client


def through(command: Command) -> str:
    """The base URL of the command."""
    return f"http://127.0.0.1:{command.port}/v1"


def masked(stream: Iterable[Any]) -> list[Chunk]:
    """The chunks as the SDK gives them, in order, without what differs between two requests.

    `timings` is llama-server's own: how long it took.
    """
    return [chunk.model_dump(exclude={"id", "created", "timings"}) for chunk in stream]


def text(chunks: list[Chunk]) -> str:
    """The answer."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join((c["text"] if "text" in c else c["delta"]["content"]) or "" for c in choices)


def tokens_of(chunk: Chunk) -> list[tuple[str, int]]:
    """The tokens that one chunk has evidence of, with how many alternatives each."""
    found: list[tuple[str, int]] = []
    for choice in chunk["choices"]:
        told = choice["logprobs"] or {}
        if told.get("content"):
            found += [(one["token"], len(one["top_logprobs"])) for one in told["content"]]
        elif told.get("tokens"):
            found += [
                (token, len(top or ()))
                for token, top in zip(told["tokens"], told["top_logprobs"], strict=True)
            ]
    return found


# --------------------------------------------------------------------------- the answer


@pytest.mark.parametrize("asked", [False, True], ids=["injected", "asked"])
def test_an_uncut_answer_is_the_answer(
    server: ModelServer, guarded: Guarded, dialect: Dialect, asked: bool
) -> None:
    """Same text, roles, finish reasons and order of events as without us; ids masked.

    Where the client asked for logprobs their tokens are compared too, their numbers not: the same
    request twice gives numbers that differ in the second digit, with a cached prompt or without.
    """
    more: dict[str, Any] = {}
    if asked:
        more = {"logprobs": True, "top_logprobs": 2} if dialect == "chat" else {"logprobs": 2}
    command = guarded(*NEVER)
    with sdk(server.url) as direct, sdk(through(command)) as ours:
        list(ask(direct, dialect, tokens=CONTROL, **more))  # fills the prompt cache for both
        expected = masked(ask(direct, dialect, tokens=CONTROL, **more))
        found = masked(ask(ours, dialect, tokens=CONTROL, **more))

    assert list(map(tokens_of, found)) == list(map(tokens_of, expected))
    assert any(map(tokens_of, found)) is asked
    for chunk in (*expected, *found):
        for choice in chunk["choices"]:
            del choice["logprobs"]
    assert found == expected
    assert len(text(found)) > CONTROL
    (report,) = command.wait_records("stream_finished", 1)
    assert (report["outcome"], report["status"]) == ("complete", "guarded")
    assert report["choices"][0]["verdict"] == "commit"


# --------------------------------------------------------------------------- the model stops


def test_a_cut_stops_the_model(server: ModelServer, guarded: Guarded, dialect: Dialect) -> None:
    """The answer would have 400 tokens; the model makes the five that were looked at."""
    command = guarded(*ALWAYS)
    with sdk(through(command)) as ours, stopped(server, dialect):
        chunks = masked(ask(ours, dialect, tokens=LONG, endless=True))

    assert chunks[-1]["choices"][0]["finish_reason"] == "content_filter"
    told = chunks[-1]["streamguard"]
    assert (told["verdict"], told["position"]) == ("abort", POSITION)
    (report,) = command.wait_records("stream_finished", 1)
    assert report["outcome"] == "aborted"


def test_a_client_that_leaves_stops_the_model(
    server: ModelServer, guarded: Guarded, dialect: Dialect
) -> None:
    """Closed after five pieces of text: the model makes those and what was under way."""
    command = guarded(*NEVER)
    with sdk(through(command)) as ours, stopped(server, dialect):
        stream = ask(ours, dialect, tokens=LONG, endless=True)
        pieces = 0
        for chunk in stream:
            pieces += bool(text([chunk.model_dump()]))
            if pieces == POSITION:
                break
        stream.close()

    (report,) = command.wait_records("stream_finished", 1)
    assert report["outcome"] == "client_gone"


@contextmanager
def stopped(server: ModelServer, dialect: Dialect) -> Iterator[None]:
    """Around one stream of 400 tokens that ends after five: the server made no more than a few.

    First the control: an answer of 40 tokens, asked directly, must show as 40 tokens in each
    measure. A measure that can't see them could not see an unstopped model either.
    """
    with sdk(server.url) as direct:
        list(ask(direct, dialect, tokens=1))  # fills the prompt cache
        server.settled()
        cpu_s, made = server.cpu_s(), server.generated()
        answer = text(masked(ask(direct, dialect, tokens=CONTROL, endless=True)))
        server.settled()
        token_cpu_s = (server.cpu_s() - cpu_s) / CONTROL
        assert token_cpu_s > 0.001
        if made is not None:
            assert generated_since(server, made) >= CONTROL - 1
        whole = cached(server, direct, dialect, answer)

        list(ask(direct, dialect, tokens=1))
        server.settled()
        cpu_s, made = server.cpu_s(), server.generated()
        yield
        server.settled()
        used_s = server.cpu_s() - cpu_s
        tell(f"CPU {used_s:.2f} s, against {token_cpu_s * LONG:.1f} s for {LONG} tokens")
        assert used_s < token_cpu_s * CONTROL
        if made is not None:
            more = generated_since(server, made)
            tell(f"{more} tokens generated")
            assert POSITION - 1 <= more <= POSITION + SLACK
        if whole is not None:
            held = cached(server, direct, dialect, answer)
            assert held is not None
            tell(f"cache holds {held} tokens, {whole} after the control of {CONTROL}")
            # `whole` is the prompt and the control's 40 tokens, but for the last of them.
            assert whole - CONTROL <= held <= whole - CONTROL + POSITION + SLACK


def tell(figure: str) -> None:
    """A figure for the log: `-rP` shows it for tests that passed."""
    sys.stdout.write(f"{figure}\n")


def generated_since(server: ModelServer, before: int) -> int:
    """Tokens by the server's own counter."""
    now = server.generated()
    assert now is not None
    return now - before


def cached(server: ModelServer, direct: openai.OpenAI, dialect: Dialect, answer: str) -> int | None:
    """How much of this prompt and answer the server's cache held, in tokens, if its log tells."""
    if server.install.kind != "llama-cpp-python":
        return None
    before = len(server.prefix_matches())
    if dialect == "chat":
        direct.chat.completions.create(
            model=ALIAS,
            messages=[
                {"role": "user", "content": PROMPT},
                {"role": "assistant", "content": answer},
                {"role": "user", "content": "Go on."},
            ],
            max_tokens=1,
        )
    else:
        direct.completions.create(model=ALIAS, prompt=f"{PROMPT}\n\n{answer}", max_tokens=1)
    (told,) = server.prefix_matches()[before:]
    return told[0]
