"""A rule that needs more alternatives than a dialect gives: the upstream is asked what it gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.bench import Bench, Serve
from tests.support.streams import stream
from tests.support.upstream import answer, sse

POLICY = """
[[rules]]
signal = "group_confidence"
below = 0.0
first = 3
k = 40
"""


def models(limit: object) -> bytes:
    """A model list that states a limit."""
    model = {"id": "test-model", "capabilities": {"max_logprobs": limit}}
    return json.dumps({"object": "list", "data": [model]}).encode()


@pytest.fixture
def wide(serve: Serve, tmp_path: Path) -> Bench:
    """A guard whose rule needs 40 alternatives; fresh, since what it learns stays."""
    policy = tmp_path / "wide.toml"
    policy.write_text(POLICY)
    return serve("--policy", str(policy), fresh=True)


def test_the_limit_is_asked_for_once_with_the_clients_key(wide: Bench) -> None:
    """One GET of the model list, with the credentials and nothing else; then the rule is fed."""
    answers = sse(stream("completions", [0.9] * 4))
    wide.upstream.answers(answer("200 OK", models(100)), answers, answers)

    got = [
        wide.stream("completions", "Authorization: Bearer k1", "X-Private: text") for _ in range(2)
    ]

    listed, *asked = (wide.upstream.exchange(number).request for number in range(3))
    assert (listed.method, listed.target, listed.raw_body) == ("GET", "/v1/models", b"")
    assert listed.head.get("authorization") == "Bearer k1"
    assert listed.head.get("x-private") is None
    assert [json.loads(request.body)["logprobs"] for request in asked] == [40, 40]
    assert [one.head.get("x-streamguard-status") for one in got] == ["guarded", "guarded"]


@pytest.mark.parametrize(
    "listing",
    [
        answer("200 OK", models(20)),
        answer("200 OK", models("many")),
        answer("404 Not Found", b"{}"),
        answer("200 OK", b"not json"),
    ],
    ids=["too few", "no number", "no list", "no json"],
)
def test_without_enough_the_stream_is_opaque(wide: Bench, listing: object) -> None:
    """Where too few are given, or nothing is learned, nothing is asked and the reason is named."""
    wide.upstream.answers(listing, sse(stream("completions", [0.9] * 4)))  # type: ignore[arg-type]

    got = wide.stream("completions")

    sent = json.loads(wide.upstream.exchange(1).request.body)
    assert "logprobs" not in sent
    assert got.head.get("x-streamguard-status") == "opaque"
    assert got.head.get("x-streamguard-reason") == "too_many_alternatives"
    assert got.body.endswith(b"data: [DONE]\n\n")


def test_a_list_that_passes_by_is_learned_from(wide: Bench) -> None:
    """A client that asks for the models itself saves us the question."""
    wide.upstream.answers(answer("200 OK", models(100)), sse(stream("completions", [0.9] * 4)))

    client = wide.client()
    client.request("GET", "/v1/models")
    assert client.answer().body == models(100)
    wide.stream("completions")

    assert json.loads(wide.upstream.exchange(1).request.body)["logprobs"] == 40
