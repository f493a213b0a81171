"""An upstream that takes no logprobs: every wording, each way to answer it, and the memory."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from tests.support.bench import GUARD, Bench, Serve
from tests.support.streams import DONE, Dialect, event, request, stream
from tests.support.upstream import Exchange, Script, answer, sse

Wording = tuple[str, object]

WORDINGS: dict[str, Wording] = {
    "openai unsupported parameter": (
        "400 Bad Request",
        {
            "error": {
                "message": "Unsupported parameter: 'logprobs' is not supported with this model.",
                "type": "invalid_request_error",
                "param": "logprobs",
                "code": "unsupported_parameter",
            }
        },
    ),
    "openai policy": (
        "403 Forbidden",
        {
            "error": {
                "message": "You are not allowed to request logprobs from this model",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        },
    ),
    "openai of old": (
        "400 Bad Request",
        {"error": {"message": "Unrecognized request argument supplied: logprobs", "param": None}},
    ),
    "gemini not enabled": (
        "400 Bad Request",
        [{"error": {"code": 400, "message": "Logprobs is not enabled for models/x"}}],
    ),
    "gemini not supported": (
        "400 Bad Request",
        {"error": {"code": 400, "message": "Logprobs is not supported for the current model."}},
    ),
    "groq": (
        "400 Bad Request",
        {"error": {"message": "`logprobs` is not supported with this model", "type": "x"}},
    ),
    "together": (
        "422 Unprocessable Entity",
        {"error": {"message": "5 is greater than the maximum of 1", "param": "logprobs"}},
    ),
    "vllm limit": (
        "400 Bad Request",
        {
            "object": "error",
            "message": "Requested sample logprobs of 7, which is greater than max allowed: 5",
            "type": "BadRequestError",
        },
    ),
    "validator": (
        "422 Unprocessable Entity",
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "top_logprobs"], "msg": "no"}]},
    ),
    "llama-server with tools": (
        "400 Bad Request",
        {"error": {"code": 400, "message": "logprobs is not supported with tools + stream"}},
    ),
    "litellm": (
        "400 Bad Request",
        {"error": {"message": "groq does not support parameters: {'logprobs': True}"}},
    ),
    "deepseek, in words": (
        "400 Bad Request",
        {"error": {"message": "This model does not support returning log probabilities"}},
    ),
    "flat text": ("404 Not Found", {"error": "logprobs mode is off"}),
}


def refusal(wording: str) -> Script:
    """The upstream's answer."""
    status, body = WORDINGS[wording]
    return answer(status, json.dumps(body).encode())


def fresh_model() -> str:
    """A name that no refusal is remembered for."""
    return f"model-{uuid.uuid4().hex}"


def sent(bench: Bench, number: int) -> dict[str, Any]:
    """The JSON body of the n-th upstream request."""
    body = json.loads(bench.upstream.exchange(number).request.body)
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize("dialect", ["chat", "completions"])
@pytest.mark.parametrize("wording", list(WORDINGS))
def test_one_second_attempt_without_our_fields(
    guard: Bench, wording: str, dialect: Dialect
) -> None:
    """`retry`: asked once with, once without; the client sees only the second answer."""
    model = fresh_model()
    body = b"".join(stream(dialect, [0.1] * 6))
    guard.upstream.answers(refusal(wording), sse([body]))

    got = guard.stream(dialect, model=model)

    assert (got.status, got.body, got.ending) == (200, body, "complete")
    assert got.head.get("x-streamguard-status") == "refused"
    assert len(guard.upstream.exchanges) == 2
    assert "logprobs" in sent(guard, 0)
    assert guard.upstream.exchange(1).request.body == request(dialect, model=model)
    record = guard.record()
    assert (record["outcome"], record["status"], record["attempts"]) == ("complete", "refused", 2)


def test_the_second_attempt_has_a_connection_of_its_own(guard: Bench) -> None:
    """A refusal whose connection closes unannounced must not take the second attempt with it."""
    body = b"".join(stream("chat", [0.9] * 6))
    refuse = refusal("openai policy")

    def refuse_and_close(exchange: Exchange) -> None:
        refuse(exchange)
        exchange.connection.fin()

    guard.upstream.answers(refuse_and_close, sse([body]))

    got = guard.stream("chat", model=fresh_model())

    assert (got.status, got.body) == (200, body)
    first, second = guard.upstream.exchange(0), guard.upstream.exchange(1)
    assert first.connection is not second.connection
    guard.record()


@pytest.mark.parametrize("wording", ["openai policy", "vllm limit", "validator"])
def test_pass_shows_the_refusal(serve: Serve, wording: str) -> None:
    """`--refused pass`: verbatim, one attempt."""
    bench = serve(*GUARD, "--refused", "pass")
    bench.upstream.answers(refusal(wording))

    got = bench.stream("chat", model=fresh_model())

    status, body = WORDINGS[wording]
    assert got.head.start == f"HTTP/1.1 {status}"
    assert json.loads(got.body) == body
    assert len(bench.upstream.exchanges) == 1


@pytest.mark.parametrize("flags", [("--refused", "reject"), ("--fail", "closed")], ids=str)
@pytest.mark.parametrize("wording", ["openai policy", "vllm limit", "validator"])
def test_reject_answers_422(serve: Serve, wording: str, flags: tuple[str, ...]) -> None:
    """`--refused reject`, and `--fail closed` which implies it: 422, not to be retried."""
    bench = serve(*GUARD, *flags)
    bench.upstream.answers(refusal(wording))

    got = bench.stream("chat", model=fresh_model())

    assert got.status == 422
    assert got.head.get("x-should-retry") == "false"
    assert set(json.loads(got.body)["error"]) == {"message", "type", "param", "code"}
    assert len(bench.upstream.exchanges) == 1
    assert bench.record()["status"] == "refused"


def in_stream(wording: str) -> Script:
    """The same refusal as the first event after HTTP 200."""
    _, body = WORDINGS[wording]
    told = body if isinstance(body, dict) and "error" in body else {"error": body}
    return sse([event(told), DONE])


@pytest.mark.parametrize("wording", ["openai of old", "vllm limit", "groq"])
def test_a_refusal_inside_http_200(guard: Bench, wording: str) -> None:
    """The first event is the refusal: nothing of it was sent, so the second attempt is unseen."""
    body = b"".join(stream("chat", [0.9] * 4))
    guard.upstream.answers(in_stream(wording), sse([body]))

    got = guard.stream("chat", model=fresh_model())

    assert (got.status, got.body) == (200, body)
    assert got.head.get("x-streamguard-status") == "refused"
    assert len(guard.upstream.exchanges) == 2


def test_a_refusal_is_remembered(guard: Bench) -> None:
    """The second request for the same model is sent as it came, in one attempt."""
    model = fresh_model()
    body = b"".join(stream("chat", [0.9] * 4))
    guard.upstream.answers(refusal("groq"), sse([body]))

    guard.stream("chat", model=model)
    got = guard.stream("chat", model=model)

    assert got.head.get("x-streamguard-status") == "refused"
    assert len(guard.upstream.exchanges) == 3
    assert guard.upstream.exchange(2).request.body == request("chat", model=model)


@pytest.mark.parametrize(
    "facet",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"reasoning_effort": "none"},
        {"model": "another-model"},
    ],
    ids=lambda facet: next(iter(facet)),
)
def test_the_memory_is_about_this_shape_of_request(guard: Bench, facet: dict[str, Any]) -> None:
    """A request that differs in what refusals depend on is asked anew."""
    model = fresh_model()
    body = b"".join(stream("chat", [0.9] * 4))
    guard.upstream.answers(refusal("groq"), sse([body]))

    guard.stream("chat", model=model)
    guard.stream("chat", **{"model": model, **facet})

    assert "logprobs" in sent(guard, 2)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("404 Not Found", {"error": {"message": "The model `x` does not exist"}}),
        ("401 Unauthorized", {"error": {"message": "Incorrect API key; logprobs"}}),
        ("429 Too Many Requests", {"error": {"message": "slow down, logprobs"}}),
        ("500 Internal Server Error", {"error": {"message": "logprobs processor failed"}}),
        ("400 Bad Request", {"error": {"message": "messages is required"}}),
    ],
)
def test_what_is_no_refusal(guard: Bench, status: str, body: object) -> None:
    """An unknown model, a bad key, a limit, a crash: passed on in one attempt."""
    guard.upstream.answers(answer(status, json.dumps(body).encode()))

    got = guard.stream("chat", model=fresh_model())

    assert got.head.start == f"HTTP/1.1 {status}"
    assert json.loads(got.body) == body
    assert len(guard.upstream.exchanges) == 1


def test_what_the_client_asked_for_is_never_retried(guard: Bench) -> None:
    """The client's own logprobs were refused: it hears that itself."""
    guard.upstream.answers(refusal("openai policy"))

    got = guard.stream("chat", model=fresh_model(), logprobs=True)

    assert got.status == 403
    assert len(guard.upstream.exchanges) == 1


def test_a_refused_second_attempt_is_final(guard: Bench) -> None:
    """The upstream refuses the client's own request too: passed on, no third attempt."""
    guard.upstream.answers(refusal("groq"))

    got = guard.stream("chat", model=fresh_model())

    assert got.status == 400
    assert len(guard.upstream.exchanges) == 2
