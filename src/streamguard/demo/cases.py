"""What the demo will do, settled before it begins: requests, and what must come of them.

Each recording is judged offline, by the same core, so that the demo knows which verdict the proxy
has to reach and how the confidence runs. The policy is here too, in one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from streamguard.core.dialects import DIALECTS, Reader
from streamguard.core.events import Verdict
from streamguard.core.specs import Policy, Rule
from streamguard.core.sse import fields_of
from streamguard.core.watch import Watch
from streamguard.sim.recordings import Recording, without_logprobs
from streamguard.sim.stream import PATHS

RULE: Final = Rule(signal="mean_prob", below=0.7, first=4, skip=("blank", "special"))
"""Picked by hand, looking at these recordings: see `CAVEAT`, which goes wherever it is shown."""
CAVEAT: Final = (
    "picked by hand on these recordings' own questions: it guarantees nothing, here or elsewhere"
)

_EVIDENCE: Final = ("logprobs", "top_logprobs")
_PATHS: Final = {dialect: path for path, dialect in PATHS.items()}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of the demo.

    Attributes:
        asks: the client asks for logprobs itself.
        path, body: the request.
        course: the rule's signal after each event.
        expected: the verdict that replaying the recording gives.
        deciding: number of the event it falls on (1-based), None without a verdict.
        cuts: the verdict is an abort, and there is something left to cut.
        whole: what the client gets where nothing is cut, event by event.
    """

    recording: Recording
    asks: bool
    path: str
    body: bytes
    course: tuple[float | None, ...]
    expected: Verdict | None
    deciding: int | None
    cuts: bool
    whole: tuple[bytes, ...]


def plan(recordings: Iterable[Recording]) -> list[Case]:
    """One case per recording; every other client asks for logprobs itself."""
    return [_case(found, asks=number % 2 == 0) for number, found in enumerate(recordings)]


def flags(rule: Rule) -> list[str]:
    """The rule as `serve` takes it."""
    words = ["--signal", rule.signal, "--below", str(rule.below), "--first", str(rule.first)]
    if rule.start is not None:
        words += ["--from", str(rule.start)]
    return [*words, "--patience", str(rule.patience), *(f"--skip-{what}" for what in rule.skip)]


def _case(recording: Recording, *, asks: bool) -> Case:
    request = {**recording.request, "model": f"recorded/{recording.name}", "stream": True}
    if not asks:
        request = {name: value for name, value in request.items() if name not in _EVIDENCE}
    form = DIALECTS[recording.dialect]
    asked = form.asked(request.get("logprobs"), request.get("top_logprobs"))
    watch = Watch(Policy(rule=RULE), asked=1 if asked is None else asked, choices=1)
    course: list[float | None] = []
    expected: Verdict | None = None
    deciding: int | None = None
    cuts = False
    reader = Reader()
    for number, (_, text) in enumerate(recording.events, 1):
        name, data = fields_of(text.encode())
        chunk = reader.read(data, name).chunk if data is not None else None
        for verdict in watch.see(chunk) if chunk is not None else ():
            expected, deciding = verdict, number
            cuts = verdict.kind == "abort" and not watch.finished
        reports = watch.reports()
        course.append(reports[0].signals.get(RULE.signal) if reports else None)
    return Case(
        recording=recording,
        asks=asks,
        path=_PATHS[recording.dialect],
        body=_encoded(request),
        course=tuple(course),
        expected=expected,
        deciding=deciding,
        cuts=cuts,
        whole=tuple(
            (text if asks else without_logprobs(text, "null")).encode()
            for _, text in recording.events
        ),
    )


def _encoded(request: dict[str, Any]) -> bytes:
    return msgspec.json.encode(request)
