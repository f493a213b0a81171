"""What a request asks for, and the one edit it may need."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamguard.core.capabilities import Limits
from streamguard.core.dialects import lenient
from streamguard.core.request import Prepared, is_guarded_path, prepare
from streamguard.core.specs import Policy, Rule

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PLAIN = Policy(rule=Rule("mean_prob", 0.5, 3))
MARGIN = Policy(rule=Rule("margin", 0.1, 3))
GROUP = Policy(rule=Rule("group_confidence", 1.0, 3, k=5))


def ready(
    body: bytes | str, path: str = CHAT, policy: Policy = PLAIN, limits: Limits | None = None
) -> Prepared:
    """The request, read."""
    raw = body if isinstance(body, bytes) else body.encode()
    found = prepare(path, raw, policy, limits=limits or Limits())
    assert found.original == raw
    return found


# --------------------------------------------------------------------------- what is guarded


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/chat/completions", "chat"),
        ("/chat/completions", "chat"),
        ("/a/b/openai/deployments/x/chat/completions?api-version=1", "chat"),
        ("/v1/completions", "completions"),
        ("/completions?x=/chat/completions", "completions"),
        ("/v1/chat/completions/", None),
        ("/v1/completions/x", None),
        ("/v1/models?next=/completions", None),
        ("/v1/xcompletions", None),
        ("/v1/embeddings", None),
        ("", None),
    ],
)
def test_guarded_paths(path: str, dialect: str | None) -> None:
    """By how the path ends; the query is left aside."""
    assert is_guarded_path(path) == dialect


def test_other_paths_are_no_business_of_it() -> None:
    """A mistake of the shell's is named."""
    with pytest.raises(ValueError, match="not a guarded path"):
        prepare("/v1/models", b"{}", PLAIN, limits=Limits())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"stream"',
        b"{",
        b"\xff\xfe",
        b'{"stream":false}',
        b'{"stream":null}',
        b'{"stream":1}',
        b'{"stream":"true"}',
        b'{"stream":[true]}',
        b'{"Stream":true}',
        b'{"x":{"stream":true}}',
        b'[{"stream":true}]',
        b'{"stream":true,"stream":false}',
        b'{"stream":true} x',
        b'\xef\xbb\xbf{"stream":true}',
        b"model=m&stream=true",
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_is_no_stream_request_passes_untouched(body: bytes, path: str) -> None:
    """Not JSON, not an object, or no `stream: true`."""
    found = ready(body, path)
    assert (found.guarded, found.injected, found.body) == (False, False, body)


def test_a_stream_request_in_any_form() -> None:
    """Blanks, order and a twin that comes first change nothing."""
    for body in (
        '{"stream":true}',
        ' {\n"stream" :\ttrue } \n',
        '{"stream":false,"stream":true}',
        r'{"str\u0065am":true}',
    ):
        assert ready(body).guarded


# --------------------------------------------------------------------------- the edit


def test_asking_in_each_dialect() -> None:
    """Members before the last brace; every other byte as it came."""
    chat = ready('{"stream":true}')
    assert chat.body == b'{"stream":true,"logprobs":true,"top_logprobs":1}'
    completions = ready('{"stream":true}', COMPLETIONS)
    assert completions.body == b'{"stream":true,"logprobs":1}'
    for found in (chat, completions):
        assert (found.injected, found.asked, found.unwatchable) == (True, 1, None)


@pytest.mark.parametrize(
    ("policy", "chat", "completions"),
    [(Policy(), 1, 1), (PLAIN, 1, 1), (MARGIN, 2, 2), (GROUP, 5, 5)],
)
def test_asking_for_what_the_rules_need(policy: Policy, chat: int, completions: int) -> None:
    """And for one alternative at least."""
    body = b'{"stream":true}'
    assert json.loads(ready(body, CHAT, policy).body)["top_logprobs"] == chat
    assert json.loads(ready(body, COMPLETIONS, policy).body)["logprobs"] == completions


BODIES = st.dictionaries(
    st.text(max_size=4) | st.sampled_from(["messages", "model", "n", "x}"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(
    BODIES,
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from(["", " ", "\r\n", "\t\n "]),
    st.sampled_from([CHAT, COMPLETIONS]),
)
def test_the_edit_touches_nothing_else(
    value: dict[str, Any], indent: int | None, ascii_only: bool, blanks: str, path: str
) -> None:
    """One insertion; parsed, the body is the client's plus our members."""
    value = {k: v for k, v in value.items() if k not in ("logprobs", "top_logprobs", "echo")}
    text = json.dumps(value | {"stream": True}, indent=indent, ensure_ascii=ascii_only)
    raw = (blanks + text + blanks).encode()
    found = ready(raw, path)

    ours = b'"logprobs":true,"top_logprobs":1' if path == CHAT else b'"logprobs":1'
    assert found.body.replace(b"," + ours, b"", 1) == raw
    added = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    assert json.loads(found.body) == json.loads(raw) | added


@pytest.mark.parametrize(
    "body",
    [
        '{"seed":123456789012345678901234567890,"t":1.00,"e":1E+2,"stream":true}',
        '{"a":1,"a":2,"stream":true}',
        '{ "stream" : true ,\n "x" : { } }\n\n',
        '{"user":"}","stream":true}',
        '{"user":"\\u007d\\"}","stream":true}',
    ],
)
def test_big_numbers_twins_and_blanks_are_kept(body: str) -> None:
    """Nothing is re-serialised."""
    place = body.rindex("}")
    expected = body[:place] + ',"logprobs":true,"top_logprobs":1' + body[place:]
    assert ready(body).body == expected.encode()


@pytest.mark.parametrize(
    "odd", [b'"\\ud800"', b'["\\ud83d","x"]', b'"\xff"', b"NaN", b"1e999", b"9" * 5000]
)
@pytest.mark.parametrize("name", [b"messages", b"prompt", b"user", b"model", b"tools"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bodies_that_only_lax_servers_take(odd: bytes, name: bytes, path: str) -> None:
    """Lone surrogates, bytes that are no UTF-8, odd numbers: guarded all the same."""
    raw = b'{"%b":%b,"stream":true}' % (name, odd)
    found = ready(raw, path)
    assert (found.guarded, found.injected) == (True, True)
    assert found.body.startswith(raw[:-1] + b',"logprobs":')


def test_prompts_with_a_lone_surrogate_are_counted() -> None:
    """What can't be written again is still one of several."""
    assert ready(r'{"prompt":["\ud800","b"],"stream":true}', COMPLETIONS).choices == 2
    assert ready(r'{"prompt":"\ud800","stream":true}', COMPLETIONS).choices == 1


# --------------------------------------------------------------------------- the client's own


@pytest.mark.parametrize(
    ("path", "fields", "asked", "unwatchable"),
    [
        (CHAT, '"logprobs":true', 0, None),
        (CHAT, '"logprobs":true,"top_logprobs":0', 0, None),
        (CHAT, '"logprobs":true,"top_logprobs":3', 3, None),
        (CHAT, '"logprobs":true,"top_logprobs":null', 0, None),
        (CHAT, '"logprobs":false', None, "logprobs_off"),
        (CHAT, '"logprobs":false,"top_logprobs":3', None, "logprobs_off"),
        (CHAT, '"top_logprobs":3', None, "logprobs_off"),
        (CHAT, '"logprobs":null,"top_logprobs":3', None, "logprobs_off"),
        (CHAT, '"top_logprobs":0', None, "logprobs_off"),
        (CHAT, '"logprobs":5', 5, None),
        (CHAT, '"logprobs":0', None, "logprobs_off"),
        (CHAT, '"logprobs":false,"logprobs":true', 0, None),
        (COMPLETIONS, '"logprobs":0', 0, None),
        (COMPLETIONS, '"logprobs":3', 3, None),
        (COMPLETIONS, '"logprobs":true', 1, None),
        (COMPLETIONS, '"logprobs":false', None, "logprobs_off"),
        (COMPLETIONS, '"logprobs":"5"', None, "logprobs_off"),
        (COMPLETIONS, '"logprobs":-1', None, "logprobs_off"),
    ],
)
def test_a_clients_own_fields_are_untouched(
    path: str, fields: str, asked: int | None, unwatchable: str | None
) -> None:
    """Whatever they say; where they say no, nothing can be watched."""
    found = ready(f'{{{fields},"stream":true}}', path)
    assert (found.body, found.injected) == (found.original, False)
    assert (found.asked, found.unwatchable) == (asked, unwatchable)


@pytest.mark.parametrize(
    ("path", "fields", "body"),
    [
        (CHAT, '"logprobs":null', '{"logprobs":true,"stream":true,"top_logprobs":1}'),
        (CHAT, '"top_logprobs": null', '{"top_logprobs": 1,"stream":true,"logprobs":true}'),
        (
            CHAT,
            '"logprobs" : null , "top_logprobs":null',
            '{"logprobs" : true , "top_logprobs":1,"stream":true}',
        ),
        (COMPLETIONS, '"logprobs":\nnull', '{"logprobs":\n1,"stream":true}'),
        (COMPLETIONS, '"top_logprobs":null', '{"top_logprobs":null,"stream":true,"logprobs":1}'),
    ],
)
def test_null_is_not_given(path: str, fields: str, body: str) -> None:
    """It is replaced where it stands: two members of one name are no JSON that all read alike."""
    found = ready(f'{{{fields},"stream":true}}', path)
    assert (found.body.decode(), found.injected) == (body, True)


def test_a_null_inside_other_values_is_not_ours() -> None:
    """Only the request's own member is touched."""
    found = ready('{"x":{"logprobs":null},"logprobs":null,"stream":true}', COMPLETIONS)
    assert found.body == b'{"x":{"logprobs":null},"logprobs":1,"stream":true}'


@pytest.mark.parametrize(
    "fields", ['"logprobs":null,"logprobs":null', '"logprobs":3,"logprobs":null']
)
def test_a_field_that_is_given_twice_is_not_edited(fields: str) -> None:
    """No edit is safe: passed on as it came, and said so."""
    found = ready(f'{{{fields},"stream":true}}', COMPLETIONS)
    assert (found.body, found.injected, found.unwatchable) == (
        found.original,
        False,
        "duplicate_fields",
    )


# --------------------------------------------------------------------------- alternatives


@pytest.mark.parametrize(
    ("path", "fields", "unwatchable"),
    [
        (CHAT, '"logprobs":true', "too_few_alternatives"),
        (CHAT, '"logprobs":true,"top_logprobs":4', "too_few_alternatives"),
        (CHAT, '"logprobs":true,"top_logprobs":5', None),
        (CHAT, '"logprobs":true,"top_logprobs":-1', None),
        (COMPLETIONS, '"logprobs":4', "too_few_alternatives"),
        (COMPLETIONS, '"logprobs":5', None),
    ],
)
def test_fewer_than_a_rule_needs(path: str, fields: str, unwatchable: str | None) -> None:
    """The client's number stands, so the signal is not to be had."""
    found = ready(f'{{{fields},"stream":true}}', path, GROUP)
    assert (found.body, found.unwatchable) == (found.original, unwatchable)


@pytest.mark.parametrize(
    ("path", "k", "limits", "unwatchable"),
    [
        (CHAT, 20, Limits(), None),
        (CHAT, 21, Limits(), "too_many_alternatives"),
        (CHAT, 21, Limits(chat=21), None),
        (CHAT, 5, Limits(chat=4), "too_many_alternatives"),
        (COMPLETIONS, 5, Limits(), None),
        (COMPLETIONS, 6, Limits(), "too_many_alternatives"),
        (COMPLETIONS, 6, Limits(completions=6), None),
        (COMPLETIONS, 5, Limits(chat=4), None),
    ],
)
def test_more_than_an_upstream_gives(
    path: str, k: int, limits: Limits, unwatchable: str | None
) -> None:
    """Not asked for: a refusal would be certain. Each dialect has its own limit."""
    policy = Policy(rule=Rule("group_confidence", 1.0, 3, k=k))
    found = ready('{"stream":true}', path, policy, limits)
    assert (found.unwatchable, found.injected) == (unwatchable, unwatchable is None)
    assert (found.body == found.original) == (unwatchable is not None)


def test_not_asking() -> None:
    """An operator may forbid it: the body goes as it is, and nothing will come."""
    found = prepare(CHAT, b'{"stream":true}', PLAIN, limits=Limits(), ask=False)
    assert (found.guarded, found.injected, found.asked, found.body) == (
        True,
        False,
        None,
        b'{"stream":true}',
    )


# --------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("path", "echo", "unwatchable"),
    [
        (COMPLETIONS, "true", "echo"),
        (COMPLETIONS, "false", None),
        (COMPLETIONS, "null", None),
        (CHAT, "true", None),
    ],
)
def test_echo(path: str, echo: str, unwatchable: str | None) -> None:
    """Prompt tokens would come as entries: not watched, not asked for."""
    found = ready(f'{{"stream":true,"echo":{echo}}}', path)
    assert (found.unwatchable, found.injected) == (unwatchable, unwatchable is None)
    own = ready(f'{{"stream":true,"logprobs":1,"echo":{echo}}}', path)
    assert (own.unwatchable, own.body) == (unwatchable, own.original)


@pytest.mark.parametrize(
    ("path", "fields", "choices"),
    [
        (CHAT, '"x":1', 1),
        (CHAT, '"n":3', 3),
        (CHAT, '"n":null', 1),
        (CHAT, '"n":0', 1),
        (CHAT, '"n":"2"', 1),
        (CHAT, '"n":true', 1),
        (CHAT, '"n":2,"prompt":["a","b"]', 2),
        (COMPLETIONS, '"prompt":"a"', 1),
        (COMPLETIONS, '"prompt":["a","b"]', 2),
        (COMPLETIONS, '"prompt": [ "a" ]', 1),
        (COMPLETIONS, '"prompt":[]', 1),
        (COMPLETIONS, '"prompt":[1,2,3]', 1),
        (COMPLETIONS, '"prompt":[[1,2],[3]]', 2),
        (COMPLETIONS, '"prompt":["a","b"],"n":3', 6),
        (COMPLETIONS, '"prompt":null,"n":2', 2),
    ],
)
def test_how_many_answers(path: str, fields: str, choices: int) -> None:
    """n times the prompts; a list of token ids is one prompt."""
    assert ready(f'{{{fields},"stream":true}}', path).choices == choices


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ('{"include_usage":true}', True),
        ('{"include_usage":false}', False),
        ('{"include_usage":1}', False),
        ("{}", False),
        ("null", False),
        ("true", False),
    ],
)
def test_whether_usage_was_asked_for(options: str, wanted: bool) -> None:
    """By the client, and never by us."""
    found = ready(f'{{"stream":true,"stream_options":{options}}}')
    assert found.include_usage is wanted
    assert b"include_usage" not in found.body or "include_usage" in options


@pytest.mark.parametrize("model", ['"m"', "null", "7", '["m"]'])
def test_the_model(model: str) -> None:
    """As the client named it; None where that is no name."""
    found = ready(f'{{"stream":true,"model":{model}}}')
    assert found.model == ("m" if model == '"m"' else None)


def test_facets() -> None:
    """What a refusal may depend on, and nothing of the prompt."""
    plain = ready('{"stream":true,"model":"m"}')
    assert plain.facets == ("m", "chat", False, False, None)
    rich = ready(
        '{"stream":true,"model":"m","tools":[],"response_format":{"type":"text"},'
        '"reasoning_effort":"low","messages":[{"content":"secret"}]}'
    )
    assert rich.facets == ("m", "chat", True, True, "low")
    nulls = ready(
        '{"stream":true,"model":"m","tools":null,"response_format":null,"reasoning_effort":null}'
    )
    assert nulls.facets == plain.facets
    assert ready('{"stream":true,"model":"m"}', COMPLETIONS).facets != plain.facets
    assert hash(rich.facets) != hash(plain.facets)


def test_large_bodies() -> None:
    """The cold path has a limit; the usual one has none."""
    large = b'{"stream":true,"x":"' + b"x" * lenient.MAX_BYTES + b'"}'
    assert ready(large).injected
