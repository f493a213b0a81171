"""The real OpenAI SDK against the running proxy: what its users will see."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import openai
import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.streams import payloads, stream
from tests.support.upstream import answer, fin, sse


def base_url(bench: Bench) -> str:
    """What a user sets."""
    return f"http://127.0.0.1:{bench.command.port}/v1"


@pytest.fixture
def sdk(guard: Bench) -> Iterator[openai.OpenAI]:
    """A client with its default number of retries."""
    with openai.OpenAI(base_url=base_url(guard), api_key="sk-test") as client:
        yield client


def chat(sdk: openai.OpenAI, model: str = "test-model", **more: object) -> list[object]:
    """All chunks of one streamed chat."""
    told = sdk.chat.completions.create(  # type: ignore[call-overload]
        model=model, messages=[{"role": "user", "content": "hi"}], stream=True, **more
    )
    return list(told)


def test_an_uncut_answer(guard: Bench, sdk: openai.OpenAI) -> None:
    """The chunks are those of the provider, without the logprobs nobody asked for."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 5)))
    guard.extra += 1

    chunks = chat(sdk)

    assert len(chunks) == 7
    text = "".join(c.choices[0].delta.content or "" for c in chunks)  # type: ignore[attr-defined]
    assert text == "t0 t1 t2 t3 t4 "
    assert all(c.choices[0].logprobs is None for c in chunks)  # type: ignore[attr-defined]


def test_asked_logprobs_arrive(guard: Bench, sdk: openai.OpenAI) -> None:
    """A client that asks for logprobs gets them."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 5)))
    guard.extra += 1

    chunks = chat(sdk, logprobs=True, top_logprobs=1)

    content = chunks[1].choices[0].logprobs.content  # type: ignore[attr-defined]
    assert content[0].logprob == pytest.approx(-0.105, abs=0.01)


def test_a_cut_by_finish(guard: Bench, sdk: openai.OpenAI) -> None:
    """The loop ends by itself; the finish reason and our object say why."""
    guard.upstream.answers(sse(stream("chat", [0.1] * 30), pace_s=0.01))
    guard.extra += 1

    last = chat(sdk)[-1]

    assert last.choices[0].finish_reason == "content_filter"  # type: ignore[attr-defined]
    told = last.streamguard  # type: ignore[attr-defined]
    assert (told["verdict"], told["position"]) == ("abort", 3)


def test_a_cut_of_completions(guard: Bench, sdk: openai.OpenAI) -> None:
    """The same for the older endpoint."""
    guard.upstream.answers(sse(stream("completions", [0.1] * 30), pace_s=0.01))
    guard.extra += 1

    told = list(sdk.completions.create(model="m", prompt="hi", stream=True))

    assert told[-1].choices[0].finish_reason == "content_filter"


def test_a_cut_by_error(serve: Serve) -> None:
    """`--on-abort error`: the SDK raises once, and does not buy the answer again (D16, D17)."""
    bench = serve(*GUARD, "--on-abort", "error")
    bench.upstream.answers(sse(stream("chat", [0.1] * 30), pace_s=0.01))
    bench.extra += 1
    with (
        openai.OpenAI(base_url=base_url(bench), api_key="sk-test") as sdk,
        pytest.raises(openai.APIError) as raised,
    ):
        chat(sdk)

    assert raised.value.code == "low_confidence"
    assert len(bench.upstream.exchanges) == 1


def test_a_truncated_answer_is_an_error(guard: Bench, sdk: openai.OpenAI) -> None:
    """An upstream that breaks off raises; the loop does not just end."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 5)[:3], pace_s=0.01, after=fin))
    guard.extra += 1

    with pytest.raises(openai.APIError):
        chat(sdk)

    assert len(guard.upstream.exchanges) == 1


def test_a_refusal_is_not_seen(guard: Bench, sdk: openai.OpenAI) -> None:
    """The model takes no logprobs: the SDK gets its answer all the same."""
    guard.upstream.answers(
        answer("400 Bad Request", b'{"error": {"param": "logprobs", "message": "no"}}'),
        sse(stream("chat", [0.9] * 5)),
    )
    guard.extra += 1

    assert len(chat(sdk, model=uuid.uuid4().hex)) == 7
    assert len(guard.upstream.exchanges) == 2


def test_a_rejection_is_not_retried(serve: Serve) -> None:
    """422 with `x-should-retry: false`: one request, one attempt, whatever the SDK's retries."""
    bench = serve(*GUARD, "--refused", "reject")
    bench.upstream.answers(
        answer("400 Bad Request", b'{"error": {"param": "logprobs", "message": "no"}}')
    )
    bench.extra += 1
    with (
        openai.OpenAI(base_url=base_url(bench), api_key="sk-test", max_retries=5) as sdk,
        pytest.raises(openai.UnprocessableEntityError),
    ):
        chat(sdk, model=uuid.uuid4().hex)

    assert len(bench.upstream.exchanges) == 1


def test_the_sdk_s_own_retries_still_work(guard: Bench, sdk: openai.OpenAI) -> None:
    """A provider's 503 with its retry fields reaches the SDK, which comes back by itself."""
    guard.upstream.answers(
        answer("503 Busy", b"{}", "retry-after-ms: 1"), sse(stream("chat", [0.9] * 5))
    )
    guard.extra += 2

    assert len(chat(sdk)) == 7
    assert len(guard.upstream.exchanges) == 2


def test_unary_and_other_endpoints(guard: Bench, sdk: openai.OpenAI) -> None:
    """What is not guarded works through the SDK as well."""
    guard.upstream.answers(
        answer("200 OK", b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'),
        answer("200 OK", b'{"id": "x", "choices": [{"index": 0, "message": {"content": "ok"}}]}'),
    )
    guard.extra += 2

    assert [model.id for model in sdk.models.list()] == ["m"]
    told = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert told.choices[0].message.content == "ok"


def test_leaving_the_loop_closes_the_upstream(guard: Bench, sdk: openai.OpenAI) -> None:
    """A user who breaks out and closes stops the generation (I2)."""
    guard.upstream.answers(sse(stream("chat", [0.9] * 300), pace_s=0.02))
    guard.extra += 1
    with sdk.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as told:
        next(iter(told))

    guard.upstream.exchange().closed_within(0.25)


def test_the_async_client(guard: Bench) -> None:
    """The async SDK: several streams at once, cut and whole."""
    low, high = stream("chat", [0.1] * 30), stream("chat", [0.9] * 5)
    guard.upstream.answers(
        lambda e: sse(low if b'"low"' in e.request.body else high, pace_s=0.01)(e)
    )
    guard.extra += 6

    async def one(sdk: openai.AsyncOpenAI, model: str) -> str | None:
        reason = None
        told = await sdk.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        async for chunk in told:
            reason = chunk.choices[0].finish_reason
        return reason

    async def run() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=base_url(guard), api_key="sk-test") as sdk:
            return await asyncio.gather(*(one(sdk, m) for m in ("low", "high") * 3))

    assert asyncio.run(run()) == ["content_filter", "stop"] * 3


def test_keep_alive_comments_do_not_disturb(guard: Bench, sdk: openai.OpenAI) -> None:
    """Comments and an `id:` line between events: the SDK reads on (C14)."""
    events = stream("chat", [0.9] * 5)
    guard.upstream.answers(
        sse([b": ping\n", b"id: 1\n" + events[0], b":\n", *events[1:3], b": ping\n", *events[3:]])
    )
    guard.extra += 1

    assert len(chat(sdk)) == len(payloads(b"".join(events))) - 1
