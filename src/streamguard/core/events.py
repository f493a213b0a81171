"""The values that travel through streamguard, and nothing that acts on them.

Bytes become `SseEvent`, events become `Chunk`, chunks become `Verdict`, verdicts become
`Action`, and everything that was seen ends as one `StreamReport`. All of them are small and
frozen; a reader can list them. The report is the log line, the trace record and the replay line
at once, so its shape is described here and nowhere else.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

# --------------------------------------------------------------------------- the closed word lists

Mode: TypeAlias = Literal["off", "observe", "enforce"]
Release: TypeAlias = Literal["stream"]
OnAbort: TypeAlias = Literal["finish", "error"]
Refused: TypeAlias = Literal["retry", "pass", "reject"]
Fail: TypeAlias = Literal["open", "closed"]
DialectName: TypeAlias = Literal["chat", "completions"]
VerdictKind: TypeAlias = Literal["commit", "abort"]

Reason: TypeAlias = Literal["unsure", "no_signal", "rule_error", "oversize", "unparsable"]
"""Why a verdict fell as it did; all but `unsure` only where the policy closes that cause."""

Status: TypeAlias = Literal["guarded", "refused", "opaque", "unscored"]
"""What `x-streamguard-status` says; `unscored` (asked, nothing came) stands in the record only."""

Outcome: TypeAlias = Literal[
    "complete",
    "aborted",
    "client_gone",
    "upstream_refused",
    "upstream_error",
    "upstream_truncated",
    "timeout_connect",
    "timeout_first_byte",
    "timeout_idle",
    "timeout_lifetime",
    "timeout_write",
    "overload",
    "bad_request",
    "internal_error",
    "shutdown",
]

OpaqueReason: TypeAlias = Literal[
    "echo",  # prompt tokens would come as entries
    "encoded",  # compressed although identity was asked
    "error_status",  # an HTTP error answer, passed on
    "duplicate_fields",  # the request names a field twice: no edit is safe
    "logprobs_off",  # the client itself switched them off
    "not_sse",  # plain JSON, or something else that is no event stream
    "oversize",  # one event larger than the limit
    "rule_error",  # a rule raised
    "too_few_alternatives",  # the client asked for fewer than a rule needs
    "too_many_alternatives",  # a rule needs more than this upstream gives
]


# --------------------------------------------------------------------------- bytes


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event, or a filler between events (a comment, a lone blank line, a BOM).

    Attributes:
        raw: the exact source bytes, line ends included; joined, the raws are the input.
        data: the payload (several data lines joined by LF), or None for a filler.
        name: the `event:` field, empty where none was sent.
    """

    raw: bytes
    data: bytes | None
    name: bytes = b""


# --------------------------------------------------------------------------- evidence


class Alternative(msgspec.Struct, frozen=True, gc=False):
    """One listed candidate for a position. `logprob` is None where it is no usable number."""

    token: str | None = None
    logprob: float | None = None
    bytes: list[int] | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One token's logprob record as the provider sent it (natural log).

    `logprob` is None where the provider sent null, nothing, or something that is no number.
    Whether a number counts is decided by `Watch`, which knows what was asked for.
    """

    token: str | None = None
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[Alternative] | None = None


class ChoiceDelta(msgspec.Struct, frozen=True, gc=False):
    """What one event says about one choice.

    Attributes:
        index: the choice.
        entries: in the order sent.
        finish_reason: the provider's word, None while the choice goes on.
        has_text: the event carries visible text, reasoning or tool-call text for the choice.
    """

    index: int
    entries: tuple[Entry, ...] = ()
    finish_reason: str | None = None
    has_text: bool = False


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One event, read. `choices` may be empty (usage, prompt filters)."""

    choices: tuple[ChoiceDelta, ...] = ()


# --------------------------------------------------------------------------- decisions


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The decision about one choice, given once.

    Attributes:
        index: the choice.
        kind: `commit` (enough seen, let it run) or `abort`.
        position: 1-based count of the choice's entries, unscorable ones included.
        reason, signal, score, threshold: what decided an abort; for a commit the rule's last look.
    """

    index: int
    kind: VerdictKind
    position: int
    reason: Reason | None = None
    signal: str | None = None
    score: float | None = None
    threshold: float | None = None


class Send(msgspec.Struct, frozen=True, gc=False):
    """Give these bytes to the client. The first one lets the response head go out."""

    data: bytes


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Close the upstream connection now; never wait for a graceful end."""

    reason: str


class End(msgspec.Struct, frozen=True, gc=False):
    """The response is over: well-formed (`clean`), or visibly broken off."""

    clean: bool


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Nothing was sent yet: answer this status and JSON body instead."""

    status: int
    body: bytes
    retry: bool = False
    """False asks SDKs not to retry (`x-should-retry: false`)."""


class Again(msgspec.Struct, frozen=True, gc=False):
    """Nothing was sent yet: close this attempt and send `body` upstream instead."""

    body: bytes


Action: TypeAlias = Send | Cancel | End | Refuse | Again


# --------------------------------------------------------------------------- the report


class ChoiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one choice.

    `entries`, `scorable`, `unscorable`, `mean_logprob` (natural log) and `min_logprob` cover every
    entry that was read; `signals` cover those the rules look at, up to the last one read.
    `cut` says that the generation of this choice was really stopped, or its text withheld.
    """

    index: int
    entries: int = 0
    scorable: int = 0
    unscorable: int = 0
    mean_logprob: float | None = None
    min_logprob: float | None = None
    signals: dict[str, float | None] = msgspec.field(default_factory=dict)
    verdict: VerdictKind | None = None
    position: int | None = None
    reason: Reason | None = None
    signal: str | None = None
    score: float | None = None
    threshold: float | None = None
    cut: bool = False
    finish_reason: str | None = None


class StreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request, once: log line, trace record, replay line and ledger input.

    Times are milliseconds from the acceptance of the request; null means "did not happen".
    `forwarded_sha256` is filled by replay only (hashing every stream costs, and nobody reads it).
    `tokens_seen` counts entries read; after a commit nothing more is counted unless something
    asked for the whole stream (`watched` says which of the two it was).
    """

    version: int = 1
    id: str | None
    upstream_id: str | None = None
    path: str | None = None
    model: str | None = None
    dialect: DialectName | None = None
    policy: str | None = None
    mode: Mode = "observe"
    release: Release = "stream"
    on_abort: OnAbort = "finish"
    status: Status | None = None
    opaque_reason: OpaqueReason | None = None
    outcome: Outcome
    http_status: int | None = None
    attempts: int = 1
    events: int = 0
    unparsable: int = 0
    tokens_seen: int = 0
    watched: Literal["all", "until_commit"] = "all"
    sent_bytes: int = 0
    forwarded_sha256: str | None = None
    first_byte_ms: float | None = None
    verdict_ms: float | None = None
    duration_ms: float | None = None
    choices: list[ChoiceReport] = msgspec.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON-able values, keys in the order declared here."""
        built = msgspec.to_builtins(self)
        assert isinstance(built, dict)
        return built
