"""Refusals of logprobs: in all their wordings, and what only looks like one. Limits and memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conformance import corpus

from streamguard.core.capabilities import (
    REFUSAL_STATUSES,
    Limits,
    RefusalMemory,
    learn_limit,
    names_logprobs,
)

# --------------------------------------------------------------------------- wordings

REFUSALS = {
    "openai o-series": {
        "error": {
            "message": "Unsupported parameter: 'logprobs' is not supported with this model.",
            "type": "invalid_request_error",
            "param": "logprobs",
            "code": "unsupported_parameter",
        }
    },
    "openai, the parameter alone": {
        "error": {"message": "unsupported parameter", "param": "logprobs", "code": None}
    },
    "openai gpt-5 (403)": {
        "error": {
            "message": "You are not allowed to request logprobs from this model",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    },
    "openai responses": {"error": {"message": "log probabilities are not available"}},
    "old openai chat": {
        "error": {"message": "Unrecognized request argument supplied: logprobs", "param": None}
    },
    "gemini": {
        "error": {
            "code": 400,
            "message": "Logprobs is not enabled for models/gemini-2.0-flash",
            "status": "INVALID_ARGUMENT",
        }
    },
    "vertex, in a list": [
        {"error": {"code": 400, "message": "Logprobs is not supported for the current model."}}
    ],
    "groq": {"error": {"message": "`logprobs` is not supported with this model"}},
    "together": {
        "error": {
            "message": "5 is greater than the maximum of 1 - 'logprobs'",
            "param": "logprobs",
            "type": "invalid_request_error",
        }
    },
    "vllm, the limit": {
        "error": {
            "message": "Requested sample logprobs of 25, which is greater than max allowed: 20",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    },
    "old vllm, flat": {
        "object": "error",
        "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'top_logprobs')}]",
        "code": 400,
    },
    "fastapi": {
        "detail": [
            {
                "type": "extra_forbidden",
                "loc": ["body", "logprobs"],
                "msg": "Extra inputs",
                "input": 1,
            }
        ]
    },
    "fastapi, one text": {"detail": "logprobs must be a boolean"},
    "llama-server": {
        "error": {"code": 400, "message": "logprobs is not supported with tools + stream"}
    },
    "litellm": {
        "error": {
            "message": "litellm.UnsupportedParamsError: x does not support parameters: "
            "{'logprobs': True}",
            "type": "None",
        }
    },
    "deepseek": {
        "error": {"message": "The parameter logprobs is not supported by deepseek-reasoner"}
    },
    "lmdeploy": {"object": "error", "message": "The logprobs_mode is off", "param": "logprobs"},
    "ollama": {"error": "top_logprobs must be between 0 and 20"},
    "a dictionary of problems": {"errors": {"logprobs": ["not permitted"]}},
    "capitals": {"error": {"message": "LOGPROBS NOT SUPPORTED"}},
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_in_many_words(name: str) -> None:
    """Any text that names logprobs, wherever it stands, however it is encoded."""
    for ascii_only in (True, False):
        for indent in (None, 2):
            body = json.dumps(REFUSALS[name], ensure_ascii=ascii_only, indent=indent)
            assert names_logprobs(body.encode())


@pytest.mark.parametrize(
    "body",
    [b"logprobs are not supported", b"<p>Unknown field: LogProbs</p>", b"\xff logprobs \xfe",
     b"{broken json: logprobs"],
)  # fmt: skip
def test_a_refusal_that_is_no_json(body: bytes) -> None:
    """It counts as one text."""
    assert names_logprobs(body)


REQUEST = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "logprobs": True,
    "top_logprobs": 1,
}
OTHERS = {
    "unknown model": {"error": {"message": "The model `nope` does not exist", "param": "model"}},
    "a key": {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}},
    "an echo of the request": {
        "detail": [
            {"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": REQUEST}
        ]
    },
    "an echo beside the message": {"error": {"message": "bad request"}, "request": REQUEST},
    "nulls": {"error": {"message": "max_tokens is too large", "logprobs": None}},
    "empty": {},
    "null": None,
    "a number": 404,
    "probabilities of something else": {"error": {"message": "top_p must be a probability"}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_refusal(name: str) -> None:
    """A validator that echoes the request names our fields without meaning them."""
    assert not names_logprobs(json.dumps(OTHERS[name]).encode())


def test_an_empty_body_is_no_refusal() -> None:
    """Nothing names nothing."""
    assert not names_logprobs(b"")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 100_000, b'"' * 64_000])
def test_hostile_error_bodies(body: bytes) -> None:
    """No recursion into what comes from outside."""
    assert not names_logprobs(body)
    assert names_logprobs(body + b"logprobs")


# --------------------------------------------------------------------------- recorded answers

RECORDED = [name for name in corpus.NAMES if Path(name).name.startswith("err-")]
ABOUT_LOGPROBS = {
    "llama-cpp-python/err-chat-logprobs-int.http",
    "llama-cpp-python/err-chat-top-neg1.http",
    "llama-cpp-python/err-completions-logprobs-neg1.http",
    "llama-server/err-chat-logprobs-int.http",
    "llama-server/err-chat-top-without-logprobs.http",
    "llama-server/err-completions-logprobs-string.http",
    "vllm-alt/err-completions-logprobs-101.http",
    "vllm/err-chat-logprobs-int.http",
    "vllm/err-chat-top-neg1.http",
    "vllm/err-chat-top-without-logprobs.http",
    "vllm/err-chat-top25.http",
    "vllm/err-completions-logprobs-101.http",
    "vllm/err-completions-logprobs-neg1.http",
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_errors(name: str) -> None:
    """Real servers' errors: those about logprobs are told from those about something else."""
    answer = corpus.answer(name)
    response = corpus.response(name)
    if answer.outcome == "upstream_error":
        said = names_logprobs(answer.payloads[0].encode())
    elif response.status != 200:
        said = names_logprobs(response.body)
    else:
        return  # this server takes what others refuse
    assert said is (name in ABOUT_LOGPROBS)


def test_the_recordings_hold_both_kinds() -> None:
    """A refusal by status and one inside HTTP 200, and a server's own 500 that is none to us."""
    statuses = {corpus.response(name).status for name in ABOUT_LOGPROBS if name in RECORDED}
    assert {200, 400} <= statuses
    assert 500 not in REFUSAL_STATUSES


# --------------------------------------------------------------------------- memory


def test_a_refusal_is_remembered_for_a_while() -> None:
    """From when it was learned; the moment it expires it is gone."""
    memory = RefusalMemory(ttl_s=10.0)
    memory.remember("k", 100.0)

    assert memory.refused("k", 109.9)
    assert not memory.refused("other", 100.0)
    assert not memory.refused("k", 110.0)
    assert len(memory) == 0


def test_learning_again_renews() -> None:
    """The last refusal counts."""
    memory = RefusalMemory(ttl_s=10.0)
    memory.remember("k", 0.0)
    memory.remember("k", 9.0)
    assert memory.refused("k", 18.0)
    assert len(memory) == 1


def test_the_memory_is_bounded() -> None:
    """The least recently learned is forgotten first."""
    memory = RefusalMemory(size=3)
    for key in ("a", "b", "c"):
        memory.remember(key, 0.0)
    memory.remember("a", 1.0)
    memory.remember("d", 1.0)

    assert len(memory) == 3
    assert [memory.refused(key, 2.0) for key in "abcd"] == [True, False, True, True]


def test_the_defaults() -> None:
    """Ten minutes, 1,024 entries; 20 alternatives in chat and 5 in completions."""
    memory = RefusalMemory()
    for key in range(2000):
        memory.remember(key, 0.0)
    assert len(memory) == 1024
    assert memory.refused(1999, 599.9)
    assert not memory.refused(1998, 600.0)
    assert (Limits().of("chat"), Limits().of("completions")) == (20, 5)


# --------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"data": [{"id": "m", "capabilities": {"max_logprobs": 7}}]}, 7),
        ({"data": [{"capabilities": {"max_logprobs": n}} for n in (9, 3, 20)]}, 3),
        ({"data": [{"id": "m"}, {"capabilities": {"max_logprobs": 4}}]}, 4),
        ({"data": [{"capabilities": {"max_logprobs": n}} for n in (0, 20)]}, 20),
        ({"data": [{"capabilities": {"max_logprobs": -1}}]}, None),
        ({"data": [{"capabilities": {"max_logprobs": True}}]}, None),
        ({"data": [{"capabilities": {"max_logprobs": "5"}}]}, None),
        ({"data": [{"capabilities": {"max_logprobs": 5.0}}]}, None),
        ({"data": [{"capabilities": ["max_logprobs"]}, None, 1]}, None),
        ({"data": {"capabilities": {"max_logprobs": 5}}}, None),
        ({"data": []}, None),
        ([], None),
        (None, None),
    ],
)
def test_a_limit_is_learned_from_a_list_of_models(body: object, limit: int | None) -> None:
    """The smallest that is stated; nothing where none is."""
    assert learn_limit(json.dumps(body).encode()) == limit


def test_what_is_no_list_of_models_teaches_nothing() -> None:
    """Broken, foreign and recorded ones."""
    assert learn_limit(b"{") is None
    assert learn_limit(b"") is None
    for name in corpus.NAMES:
        if Path(name).name == "models.http":
            found = learn_limit(corpus.response(name).body)
            assert found is None or found >= 0
