"""What a request asks for, and the one edit it may need: asking for logprobs.

The edit is made by span: members are inserted before the object's last brace, or a null is
replaced; every other byte of the client's body goes upstream as it came. A client's own logprobs
fields are never changed (null counts as not given).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from streamguard.core.capabilities import Limits
from streamguard.core.dialects import DIALECTS, lenient
from streamguard.core.events import DialectName, OpaqueReason
from streamguard.core.jsonspan import find_spans, replace_spans
from streamguard.core.specs import Policy

Raw = msgspec.Raw
_ABSENT: Final = Raw()
_NULL: Final = Raw(b"null")
MAX_FACET: Final = 256
"""Characters of a client's word that are remembered with a refusal."""
MAX_NUMBER: Final = 32
"""Bytes of JSON that a sane `n` has; anything longer is not read."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """One request, read.

    Attributes:
        guarded: False where it is no streamed JSON request: pass it on untouched, unwatched.
        dialect: by the path.
        body: what to send upstream.
        original: what the client sent.
        injected: `body` asks for logprobs that the client did not ask for.
        asked: alternatives per token that come with the logprobs; None where none will come.
        choices: how many answers the request makes; None if unknown.
        include_usage: the client asked for a usage chunk.
        model: as the client named it.
        unwatchable: why this request can't be judged, whatever comes back.
        facets: what a refusal of logprobs may depend on.
    """

    guarded: bool
    dialect: DialectName
    body: bytes
    original: bytes
    injected: bool = False
    asked: int | None = None
    choices: int | None = 1
    include_usage: bool = False
    model: str | None = None
    unwatchable: OpaqueReason | None = None
    facets: tuple[str | bool | None, ...] = ()


class _Fields(msgspec.Struct):
    stream: Raw = _ABSENT
    logprobs: Raw = _ABSENT
    top_logprobs: Raw = _ABSENT
    n: Raw = _ABSENT
    echo: Raw = _ABSENT
    prompt: Raw = _ABSENT
    model: Raw = _ABSENT
    stream_options: Raw = _ABSENT
    tools: Raw = _ABSENT
    response_format: Raw = _ABSENT
    reasoning_effort: Raw = _ABSENT


_FIELDS: Final = msgspec.json.Decoder(_Fields)


def is_guarded_path(path: str) -> DialectName | None:
    """The dialect of a path that is guarded, query left aside; None for every other path."""
    bare = path.partition("?")[0]
    if bare.endswith("/chat/completions"):
        return "chat"
    return "completions" if bare.endswith("/completions") else None


def prepare(
    path: str, body: bytes, policy: Policy, *, limits: Limits, ask: bool = True
) -> Prepared:
    """Read a POST to a guarded path.

    Args:
        path: the request path; must be one that `is_guarded_path` knows.
        body: the client's body, whole.
        policy: decides how many alternatives are needed.
        limits: the most this upstream gives.
        ask: False sends the client's body as it is, whatever the policy would like to see.
    """
    dialect = is_guarded_path(path)
    if dialect is None:
        raise ValueError(f"not a guarded path: {path!r}")
    fields = _read(body)
    if fields is None or fields.stream != Raw(b"true"):
        return Prepared(guarded=False, dialect=dialect, body=body, original=body)

    form = DIALECTS[dialect]
    own = {name: getattr(fields, name) for name in form.FIELDS}
    given = {name: value for name, value in own.items() if value not in (_ABSENT, _NULL)}
    asked = form.asked(_value(given.get("logprobs")), _value(given.get("top_logprobs")))
    needed = policy.alternatives
    unwatchable: OpaqueReason | None = None
    injected = False
    sent = body
    if dialect == "completions" and _value(fields.echo) is True:
        unwatchable = "echo"
    elif given:
        if asked is None:
            unwatchable = "logprobs_off"
        elif asked < needed:
            unwatchable = "too_few_alternatives"
    elif needed > limits.of(dialect):
        unwatchable = "too_many_alternatives"
    elif ask:
        edited = _insert(body, form.evidence_fields(needed), own)
        if edited is None:
            unwatchable = "duplicate_fields"
        else:
            sent, injected, asked = edited, True, max(1, needed)

    model = _value(fields.model)
    effort = _value(fields.reasoning_effort)
    options = _value(fields.stream_options)
    return Prepared(
        guarded=True,
        dialect=dialect,
        body=sent,
        original=body,
        injected=injected,
        asked=asked,
        choices=_choices(fields, dialect),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        model=model if isinstance(model, str) else None,
        unwatchable=unwatchable,
        facets=(
            model[:MAX_FACET] if isinstance(model, str) else None,
            dialect,
            fields.tools not in (_ABSENT, _NULL),
            fields.response_format not in (_ABSENT, _NULL),
            effort[:MAX_FACET] if isinstance(effort, str) else None,
        ),
    )


def _read(body: bytes) -> _Fields | None:
    """The members of interest, or None if the body is no JSON object."""
    try:
        return _FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        pass
    # A lone surrogate in a prompt is refused by the typed decoder and taken by most servers.
    found = lenient.load(body)
    if not isinstance(found, dict) or not body.rstrip().endswith(b"}"):
        return None
    known = {name: found[name] for name in _Fields.__struct_fields__ if name in found}
    return _Fields(**{name: _raw(value) for name, value in known.items()})


def _raw(value: object) -> Raw:
    """The value as JSON again, for its kind and number; text that can't be written is left out."""
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        if isinstance(value, list):
            return Raw(msgspec.json.encode([0 if isinstance(v, int) else "" for v in value]))
        return Raw(b'""')


def _value(raw: Raw | None) -> Any:
    """A member's value; None where it is absent, null, or too odd to be one we use."""
    if raw is None or raw == _ABSENT:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _choices(fields: _Fields, dialect: DialectName) -> int:
    """n times the number of prompts. A list of token ids is one prompt."""
    n = _value(fields.n) if len(bytes(fields.n)) <= MAX_NUMBER else None
    count = n if type(n) is int and n > 0 else 1
    if dialect == "completions" and bytes(fields.prompt).lstrip()[:1] == b"[":
        prompts = _value(fields.prompt)
        if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
            count *= len(prompts)
    return count


def _insert(body: bytes, members: bytes, own: dict[str, Raw]) -> bytes | None:
    """The body with our members in it; None where a member is named twice."""
    nulls = [name for name, value in own.items() if value == _NULL]
    if nulls:
        # A null of the client's is taken out of the way: two members of one name are no JSON
        # that two servers read alike.
        ours = msgspec.json.decode(b"{" + members + b"}", type=dict[str, Raw])
        for name in nulls:
            spans = find_spans(body, (name,))
            if len(spans) != 1:
                return None
            body = replace_spans(body, spans, bytes(ours.pop(name)))
        members = b",".join(b'"%s":%s' % (name.encode(), bytes(v)) for name, v in ours.items())
        if not members:
            return body
    close = body.rindex(b"}")
    return body[:close] + b"," + members + body[close:]
