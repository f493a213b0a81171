"""Replay: recorded streams through the same core as live ones, one `StreamReport` each.

A stream's bytes go through a `Guard`, exactly as in the proxy; a whole JSON answer and a JSON
Lines record, which have no events, go through a `Watch`. Nothing is opened but the recordings.

Observing (the default of the command) reads the whole stream: the verdict says what enforcing
would do, and the hash is that of what the provider sent, nothing of ours in it. Enforcing stops
where a live stream would have been cut; the hash covers what a client would have got.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from streamguard.core import sniff
from streamguard.core.dialects import read_answer
from streamguard.core.events import (
    Action,
    ChoiceDelta,
    Chunk,
    DialectName,
    Outcome,
    Refuse,
    Send,
    StreamReport,
)
from streamguard.core.guard import Guard
from streamguard.core.request import Prepared
from streamguard.core.signals import SIGNALS
from streamguard.core.specs import Policy
from streamguard.core.watch import Watch
from streamguard.errors import InputError
from streamguard.records.recordings import (
    SUFFIXES,
    Answer,
    Kind,
    TokenRecord,
    kind_of,
    open_answer,
    read_records,
)

MAX_JSON_BYTES: Final = 64 * 1024 * 1024
"""A JSON answer is read whole, unlike a stream."""
_ID: Final = "replay"
"""Stands where a live stream has our id of the request, so that a replay can be repeated."""
_NOW: Final = 0.0
"""A recording has no clock, and no verdict depends on one."""
_NO_TIMES: Final = {"first_byte_ms": None, "verdict_ms": None, "duration_ms": None}


def find_recordings(paths: Iterable[Path]) -> Iterator[Path | InputError]:
    """The files named, and those in the directories named, at any depth, in order of name.

    Yields:
        Paths; an error in place of a directory that holds no recording.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = [f for f in sorted(path.rglob("*")) if f.suffix.lower() in SUFFIXES and f.is_file()]
        if not found:
            yield InputError(str(path), "holds no " + ", ".join(SUFFIXES))
        yield from found


def replay(
    path: Path,
    policy: Policy,
    *,
    dialect: DialectName | None = None,
    requested: int | None = None,
) -> Iterator[StreamReport | InputError]:
    """Replay one file.

    Args:
        path: a recording of any kind.
        policy: what to judge; its mode says whether to cut (`enforce`) or only to tell.
        dialect: names the shape in the reports; None: the shape that the recording shows.
        requested: alternatives per token that were asked for; None if nobody knows.

    Yields:
        One report a stream; an error in place of a stream that can't be read. Never raises for
        what a file contains.
    """
    try:
        kind = kind_of(path)
        if kind == "records":
            for record in read_records(path):
                if isinstance(record, InputError):
                    yield record
                else:
                    yield _replay_record(path, record, policy, dialect, requested)
        else:
            yield _replay_answer(path, kind, policy, dialect, requested)
    except InputError as error:
        yield error


# --------------------------------------------------------------------------- kinds of recordings


def _replay_record(
    path: Path,
    record: TokenRecord,
    policy: Policy,
    dialect: DialectName | None,
    requested: int | None,
) -> StreamReport:
    """An answer of which only the entries were kept: one choice, no bytes."""
    watch = Watch(policy, asked=requested, choices=1, also=SIGNALS)
    watch.see(Chunk((ChoiceDelta(0, record.entries),)))
    watch.end()
    return _watched(path, watch, policy, dialect=dialect, outcome="complete", id=record.id)


def _replay_answer(
    path: Path, kind: Kind, policy: Policy, dialect: DialectName | None, requested: int | None
) -> StreamReport:
    with open_answer(path, kind) as answer:
        start, pieces = _peek(answer)
        if (
            sniff.kind_of(start, "application/json") == "object"
            and answer.status in (None, 200)
            and answer.content_encoding is None
        ):
            return _replay_json(path, answer, pieces, policy, dialect, requested)
        if policy.mode != "enforce":
            return _replay_stream(path, answer, pieces, policy, dialect, requested, choices=None)
    # A live guard knows from the request how many choices will come; the recording itself tells.
    observed = _replay_answer(
        path, kind, msgspec.structs.replace(policy, mode="observe"), dialect, requested
    )
    choices = max(1, len(observed.choices))
    with open_answer(path, kind) as answer:
        return _replay_stream(
            path, answer, answer.pieces(), policy, dialect, requested, choices=choices
        )


def _replay_stream(
    path: Path,
    answer: Answer,
    pieces: Iterable[bytes],
    policy: Policy,
    dialect: DialectName | None,
    requested: int | None,
    *,
    choices: int | None,
) -> StreamReport:
    """Bytes through a `Guard`, as a shell would do it."""
    prepared = Prepared(
        guarded=True,
        dialect=dialect or "chat",
        body=b"",
        original=b"",
        asked=requested,
        choices=choices,
    )
    guard = Guard(policy, prepared, id=_ID, now=_NOW, also=SIGNALS, watch_all=True)
    observing = policy.mode != "enforce"
    digest = hashlib.sha256()

    def take(actions: list[Action]) -> None:
        for action in actions if not observing else ():
            match action:
                case Send(data) | Refuse(_, data):
                    digest.update(data)
                case _:
                    pass  # nothing is open that could be cancelled or ended

    take(guard.start())
    status = 200 if answer.status is None else answer.status
    take(guard.receive_head(status, answer.content_type, answer.content_encoding, _NOW))
    for piece in pieces:
        if observing:
            digest.update(piece)
        take(guard.receive_data(piece, _NOW))
        if guard.ended and not observing:
            break
    take(guard.receive_eof(_NOW, clean=answer.clean))
    report = guard.report(
        path=printable(str(path)),
        http_status=answer.status,
        forwarded_sha256=digest.hexdigest(),
        **_NO_TIMES,
    )
    shown = report.dialect if report.choices else None  # without a choice no shape was shown
    return msgspec.structs.replace(report, id=report.upstream_id, dialect=dialect or shown)


class _Ids(msgspec.Struct):
    id: str | None = None


def _replay_json(
    path: Path,
    answer: Answer,
    pieces: Iterable[bytes],
    policy: Policy,
    dialect: DialectName | None,
    requested: int | None,
) -> StreamReport:
    """One whole JSON answer: read as one chunk."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MAX_JSON_BYTES:
            problem = f"is a JSON answer of more than {MAX_JSON_BYTES >> 20} MiB"
            raise InputError(str(path), problem)
    reading = read_answer(bytes(body).removeprefix(b"\xef\xbb\xbf"))
    if reading.kind == "unparsable" and answer.status is None:
        raise InputError(str(path), "is no JSON")
    watch = Watch(policy, asked=requested, choices=None, also=SIGNALS)
    upstream_id = None
    outcome: Outcome = "complete" if answer.clean else "upstream_truncated"
    match reading.kind:
        case "chunk":
            assert reading.chunk is not None
            watch.see(reading.chunk)
            upstream_id = _id_of(body)
            # As for a stream: an answer is whole if every choice in it has its finish.
            if watch.seen:
                outcome = "complete" if watch.seen <= watch.finished else "upstream_truncated"
        case "error":
            outcome = "upstream_error"
        case _:
            pass  # another shape, or none: nothing to score
    if outcome != "upstream_truncated":
        watch.end()
    report = _watched(
        path,
        watch,
        policy,
        dialect=dialect or (reading.dialect if watch.seen else None),
        outcome=outcome,
        id=upstream_id,
    )
    return msgspec.structs.replace(
        report,
        upstream_id=upstream_id,
        http_status=answer.status,
        unparsable=int(reading.kind == "unparsable"),
        sent_bytes=len(body),
        forwarded_sha256=hashlib.sha256(body).hexdigest(),
    )


# --------------------------------------------------------------------------- small things


def _watched(
    path: Path,
    watch: Watch,
    policy: Policy,
    *,
    dialect: DialectName | None,
    outcome: Outcome,
    id: str | None,
) -> StreamReport:
    """The report of an answer that had no events."""
    choices = watch.reports()
    return StreamReport(
        id=id,
        path=printable(str(path)),
        dialect=dialect,
        policy=policy.name,
        mode=policy.mode,
        release=policy.release,
        on_abort=policy.on_abort,
        status="guarded" if any(choice.scorable for choice in choices) else "unscored",
        outcome=outcome,
        tokens_seen=watch.entries,
        choices=choices,
    )


def _id_of(body: bytes | bytearray) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Ids).id
    except (msgspec.DecodeError, RecursionError):
        return None


def printable(text: str) -> str:
    """`text` with lone surrogates (a file name that is no UTF-8) spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _peek(answer: Answer) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes that say something, and the whole body all the same."""
    start = b""
    pieces = answer.pieces()
    for piece in pieces:
        start += piece
        if sniff.kind_of(start, "application/json") is not None:
            break
    return start, chain((start,) if start else (), pieces)
