"""Whether the demo may say that it worked: proxy, provider and client must tell one story.

The proxy's record says what was decided, the provider's books what was sent and when the close was
seen, the client's bytes what arrived. Nothing one of them says is believed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from streamguard.core.sse import SseParser
from streamguard.demo.stream import Stream


def failures(streams: Iterable[Stream]) -> list[str]:
    """Everything that is not as it must be, a sentence each; empty if all is well."""
    return [
        f"{stream.case.recording.name}: {problem}"
        for stream in streams
        for problem in _problems(stream)
    ]


def _problems(stream: Stream) -> Iterator[str]:
    case, line = stream.case, stream.line
    if stream.problem is not None:
        yield f"the client got no whole response ({stream.problem})"
        return
    if stream.report is None:
        yield "the proxy has no record of it"
        return
    if line is None:
        yield "the provider has no record of it"
        return
    wanted = case.expected
    found = (stream.verdict, stream.position)
    if wanted is None or (wanted.kind, wanted.position) != found:
        replayed = "none" if wanted is None else f"{wanted.kind} at {wanted.position}"
        yield f"the verdict was {found[0]} at {found[1]}; replaying the recording gives {replayed}"
    if stream.cut != case.cuts:
        yield "it was cut" if stream.cut else "it should have been cut, and was not"
    if stream.cut:
        if line["closed_by"] != "client" or stream.closed_ms is None:
            yield "it was cut, and the provider saw no close"
        if stream.tokens_sent >= stream.tokens_recorded:
            yield "it was cut, and the provider sent all of it"
        yield from _cut_body(stream)
    else:
        if line["closed_by"] != "server" or stream.tokens_sent != stream.tokens_recorded:
            yield "it was not cut, and the provider could not send all of it"
        if bytes(stream.body) != b"".join(case.whole):
            yield "it was not cut, and did not arrive byte for byte"


def _cut_body(stream: Stream) -> Iterator[str]:
    """Up to the deciding event byte for byte, then one event of the proxy's and the end mark."""
    sent = b"".join(stream.case.whole[: stream.case.deciding])
    if not stream.body.startswith(sent):
        yield "what came before the cut did not arrive byte for byte"
        return
    events = [e.data for e in SseParser().feed(bytes(stream.body[len(sent) :])) if e.data]
    if len(events) != 2 or events[1] != b"[DONE]":
        yield "the cut stream does not end with one event of the proxy's and [DONE]"
        return
    facts = msgspec.json.decode(events[0]).get("streamguard") or {}
    if facts.get("verdict") != "abort" or facts.get("position") != stream.position:
        yield "its last event does not say why it was cut"
