"""Public bug reports, kind C: how evidence is asked for, and what a refusal leads to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conformance.bench import OBSERVE, SURE, prepared, refusal, run
from tests.reference.build import C, D, event, said

from streamguard.core.capabilities import Limits, RefusalMemory
from streamguard.core.events import Again, Cancel, End
from streamguard.core.guard import Guard
from streamguard.core.request import Prepared, prepare
from streamguard.core.specs import FailPolicy, Policy, Rule

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MARGIN = Policy(rule=Rule(signal="margin", below=0.1, first=1))
TOP_8 = Policy(rule=Rule(signal="group_confidence", below=1.0, first=8, k=8))


def ask(path: str, policy: Policy = SURE, limits: Limits | None = None, **body: Any) -> Prepared:
    """A streaming request with these fields, prepared."""
    data = json.dumps({"model": "m", "stream": True, **body}).encode()
    return prepare(path, data, policy, limits=limits or Limits())


def added(found: Prepared) -> dict[str, Any]:
    """What stands in the body upstream gets and not in the client's; nothing else may differ."""
    before, after = json.loads(found.original), json.loads(found.body)
    assert {key: after[key] for key in before} == before
    return {key: value for key, value in after.items() if key not in before}


@pytest.mark.parametrize(("policy", "count"), [(SURE, 1), (OBSERVE, 1), (MARGIN, 2)])
def test_b39_count_on_completions(policy: Policy, count: int) -> None:
    """B39: completions are asked with a number, never with true."""
    fields = added(ask(COMPLETIONS, policy, prompt="a"))
    assert fields == {"logprobs": count}
    assert type(fields["logprobs"]) is int


@pytest.mark.parametrize("path", [CHAT, "/chat/completions", "/openai/v9/chat/completions?a=b"])
def test_b15_b42_chat_is_asked_with_both_fields(path: str) -> None:
    """B15, B42, B44: the guard's own request carries both fields: a server may need either."""
    assert added(ask(path)) == {"logprobs": True, "top_logprobs": 1}
    assert added(ask(path, MARGIN)) == {"logprobs": True, "top_logprobs": 2}


@pytest.mark.parametrize(
    "own",
    [
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 0},
        {"logprobs": True, "top_logprobs": 1},
        {"logprobs": True, "top_logprobs": -1},
        {"top_logprobs": 3},
        {"logprobs": False, "top_logprobs": 3},
        {"logprobs": False},
        {"logprobs": 5},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("policy", [SURE, MARGIN, TOP_8], ids=["none", "two", "eight"])
def test_b42_b43_b44_the_clients_own_fields_are_never_changed(
    own: dict[str, Any], policy: Policy
) -> None:
    """B42, B43, B44: whatever the client said of logprobs goes upstream as it stands."""
    found = ask(CHAT, policy, messages=[], **own)
    assert (found.body, found.injected) == (found.original, False)


def test_b43_never_more_than_the_client_or_the_server_gives() -> None:
    """B43: a rule that needs more than the client asked, or the server gives, goes without."""
    found = ask(CHAT, MARGIN, logprobs=True, top_logprobs=1)
    assert found.unwatchable == "too_few_alternatives"
    found = ask(COMPLETIONS, TOP_8, prompt="a")
    assert (found.unwatchable, found.body) == ("too_many_alternatives", found.original)
    raised = ask(COMPLETIONS, TOP_8, Limits(completions=8), prompt="a")
    assert (raised.unwatchable, added(raised)) == (None, {"logprobs": 8})


@pytest.mark.parametrize("stop", ["\n", ["a", "b"], None])
def test_b17_stop_changes_nothing(stop: Any) -> None:
    """B17: a `stop` in the request changes neither what is asked for nor what is remembered."""
    plain, stopped = ask(CHAT), ask(CHAT, stop=stop)
    assert added(stopped) == added(plain)
    assert stopped.facets == plain.facets


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "o3-mini", "deepseek-reasoner", "grok-4", ""])
def test_b45_no_model_is_known_by_name(model: str) -> None:
    """B45: every model is asked; only its own refusal teaches otherwise."""
    assert added(ask(CHAT, model=model)) == {"logprobs": True, "top_logprobs": 1}


def test_b45_a_refusal_is_learnt_for_one_kind_of_request() -> None:
    """B45: what was refused with one effort, or with tools, is asked again without."""
    memory = RefusalMemory()
    refused = ask(CHAT, model="m", reasoning_effort="high")
    memory.remember(("up", *refused.facets), 0.0)
    for other in (
        ask(CHAT, model="m", reasoning_effort="none"),
        ask(CHAT, model="m"),
        ask(CHAT, model="m2", reasoning_effort="high"),
        ask(CHAT, model="m", reasoning_effort="high", tools=[{}]),
        ask(CHAT, model="m", reasoning_effort="high", response_format={"type": "json_object"}),
        ask(COMPLETIONS, model="m", reasoning_effort="high"),
    ):
        assert not memory.refused(("up", *other.facets), 1.0)
    assert memory.refused(("up", *refused.facets), 599.0)
    assert not memory.refused(("up", *refused.facets), 600.0)


REFUSALS: list[tuple[int, Any]] = [
    (400, {"error": {"message": "not supported", "param": "logprobs", "code": None}}),
    (403, {"error": {"message": "You are not allowed to request logprobs from this model"}}),
    (400, {"object": "error", "message": "requested sample logprobs of 30", "code": 400}),
    (422, {"detail": [{"loc": ["body", "top_logprobs"], "msg": "extra fields not permitted"}]}),
    (404, {"error": "log probabilities are not available"}),
    (400, {"error": {"code": 400, "message": "Logprobs is not enabled for models/x"}}),
]


@pytest.mark.parametrize(("status", "answer"), REFUSALS)
def test_b49_clients_own_refusal_is_passed_on(status: int, answer: Any) -> None:
    """B49: a refusal of what the client asked itself is the client's: one attempt, every byte."""
    body = json.dumps(answer).encode()
    found = run(body, SURE, prepared(injected=False), status=status, content_type=None)
    assert (found.sent, found.end) == (body, End(True))
    assert not any(isinstance(action, (Again, Cancel)) for action in found.actions)


@pytest.mark.parametrize(("status", "answer"), REFUSALS)
def test_b49_refusal_of_our_own_fields_is_tried_once_without_them(status: int, answer: Any) -> None:
    """B49: the second attempt is the client's own request, a stream as before."""
    request = ask(CHAT)
    guard = Guard(SURE, request, id="rid", now=0.0)
    assert guard.body == request.body != request.original
    actions = guard.receive_head(status, "application/json", None, 0.0)
    actions += guard.receive_data(json.dumps(answer).encode(), 0.0)
    actions += guard.receive_eof(0.0)
    assert actions == [Cancel("refused"), Again(request.original)]
    assert json.loads(request.original)["stream"] is True

    body = C(0, "a") + C(0, {}, None, "stop") + D
    actions = guard.receive_head(200, "text/event-stream", None, 0.0)
    actions += guard.receive_data(body, 0.0) + guard.receive_eof(0.0)
    report = guard.report()
    assert (guard.status, report.status, report.attempts) == ("refused", "refused", 2)
    assert b"".join(getattr(action, "data", b"") for action in actions) == body


def test_b49_refusal_inside_http_200_is_one_too() -> None:
    """B49, whole kind: an error as the stream's first event that names logprobs; nothing sent."""
    refused = event({"error": {"message": "x", "parameter": "logprobs", "code": 400}}) + D
    guard = Guard(SURE, ask(CHAT), id="rid", now=0.0)
    actions = guard.receive_head(200, "text/event-stream", None, 0.0)
    actions += guard.receive_data(b": ping\n\n", 0.0) + guard.receive_data(refused, 0.0)
    assert actions == [Cancel("refused"), Again(guard.body)]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (401, {"error": {"message": "bad key: logprobs"}}),
        (404, {"error": {"message": "The model `m` does not exist"}}),
        (400, {"error": {"message": "context too long"}, "request": {"logprobs": True}}),
        (429, {"error": {"message": "logprobs quota"}}),
        (500, {"error": {"message": "logprobs failed"}}),
    ],
)
def test_b49_other_errors_are_no_refusal(status: int, answer: Any) -> None:
    """B49: a key, an unknown model, a limit, a fault are passed on, never tried again."""
    body = json.dumps(answer).encode()
    found = run(body, SURE, ask(CHAT), status=status, content_type="application/json")
    assert (found.sent, found.report.attempts) == (body, 1)


def test_b49_closed_policy_refuses_instead_of_going_blind() -> None:
    """B49 under `fail closed`: what the upstream won't let us watch is answered 422."""
    policy = Policy(rule=SURE.rule, fail=FailPolicy.all("closed"))
    status, answer = REFUSALS[0]
    found = run(json.dumps(answer).encode(), policy, ask(CHAT), status=status)
    refused = refusal(found)
    assert (refused.status, refused.retry, found.sent) == (422, False, b"")
    assert not any(isinstance(action, Again) for action in found.actions)


def test_b13_silent_server_is_not_taken_for_a_refusal() -> None:
    """B13, B47, B48: silence is no refusal: nothing is tried again, nothing remembered."""
    body = C(0, "a") + C(0, {}, None, "stop") + D
    found = run(body, SURE, ask(CHAT))
    assert (found.sent, found.guard.refused, found.report.attempts) == (body, False, 1)


def test_what_was_injected_is_taken_out_again() -> None:
    """A client that asked for no logprobs gets its stream with null in their place."""
    body = said(("a", -0.1), ("b", -0.2))
    found = run(body, SURE, ask(CHAT))
    wanted = [json.loads(line[6:]) for line in body.split(b"\n\n") if b"choices" in line]
    for chunk in wanted:
        chunk["choices"][0]["logprobs"] = None
    got = [json.loads(line[6:]) for line in found.sent.split(b"\n\n") if b"choices" in line]
    assert got == wanted
    assert found.choice.entries == 2
