"""Every recorded answer of a real server: what replay says against what the oracle says.

The expected values come from `tests.reference` alone (httpx-sse, json, textbook formulas).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import corpus
from tests.reference import scores
from tests.reference.reader import sse_events
from tests.support.streams import sliced

from streamguard.core.events import Cancel, End, Send, StreamReport
from streamguard.core.guard import Guard
from streamguard.core.request import Prepared
from streamguard.core.specs import Policy, Rule
from streamguard.errors import InputError
from streamguard.lab.replay import replay

STREAMS = [name for name in corpus.NAMES if corpus.answer(name).events]
RULES: list[dict[str, Any]] = [
    {"signal": "mean_prob", "below": 0.7, "first": 4},
    {"signal": "min_prob", "below": 0.3, "start": 2, "first": 8},
    {"signal": "first_prob", "below": 0.5, "first": 1},
    {"signal": "window_prob", "below": 0.6, "start": 8, "first": 20},
]
NO_RULE = Policy(mode="observe")


def replayed(path: Path, policy: Policy, requested: int | None) -> StreamReport:
    (report,) = replay(path, policy, requested=requested)
    assert not isinstance(report, InputError), report
    return report


def expected_line(name: str, requested: int | None) -> dict[str, Any]:
    """The fields that a replay line must have, without a rule, by the oracle."""
    answer = corpus.answer(name)
    return {
        "id": answer.id,
        "dialect": answer.dialect,
        "outcome": answer.outcome,
        "events": answer.events,
        "forwarded_sha256": hashlib.sha256(corpus.response(name).body).hexdigest(),
        "choices": [
            {
                **scores.figures(answer.choices[index], requested),
                "verdict": None,
                "position": None,
                "reason": None,
            }
            for index in sorted(answer.choices)
        ],
    }


def agrees(got: Any, wanted: Any, where: str = "") -> None:
    """Every wanted field is there and equal; numbers to nine digits."""
    if isinstance(wanted, dict):
        assert isinstance(got, dict), where
        for key, value in wanted.items():
            assert key in got, f"{where}.{key} is missing"
            agrees(got[key], value, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), where
        for place, value in enumerate(wanted):
            agrees(got[place], value, f"{where}[{place}]")
    elif isinstance(wanted, float):
        assert got == pytest.approx(wanted, rel=1e-9, abs=1e-12), where
    else:
        assert got == wanted, where


def test_corpus_is_whole() -> None:
    """The index names every recording and nothing else, and most of them are streams."""
    files = {str(p.relative_to(corpus.RECORDINGS)) for p in corpus.RECORDINGS.rglob("*.http")}
    assert files == set(corpus.NAMES)
    assert len(files) == 184
    assert len(STREAMS) > 110
    outcomes = {corpus.answer(name).outcome for name in STREAMS}
    assert outcomes == {"complete", "upstream_error", "upstream_truncated"}


@pytest.mark.parametrize("name", corpus.NAMES)
def test_line_agrees_with_the_oracle(name: str) -> None:
    """Entries, scores, signals, finish, outcome, events, id, dialect and hash of each recording."""
    requested = corpus.asked(name)
    report = replayed(corpus.RECORDINGS / name, NO_RULE, requested)
    agrees(report.as_dict(), expected_line(name, requested), name)


@pytest.mark.parametrize("name", [n for n in corpus.NAMES if corpus.answer(n).choices])
def test_line_agrees_where_nobody_knows_what_was_asked(name: str) -> None:
    """Without the flag: bare zeros count only once the choice has shown a credible entry."""
    agrees(
        replayed(corpus.RECORDINGS / name, NO_RULE, None).as_dict(), expected_line(name, None), name
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["signal"]))
@pytest.mark.parametrize("name", [n for n in corpus.NAMES if corpus.answer(n).choices])
def test_verdict_agrees_with_the_oracle(name: str, rule: dict[str, Any]) -> None:
    """Observing: each choice's verdict and its position are those that the formula gives."""
    requested = corpus.asked(name)
    answer = corpus.answer(name)
    report = replayed(
        corpus.RECORDINGS / name, Policy(mode="observe", rule=Rule(**rule)), requested
    )
    for choice in report.choices:
        wanted = scores.verdict(
            answer.choices[choice.index],
            requested,
            ended=answer.outcome != "upstream_truncated",
            **rule,
        )
        assert (choice.verdict, choice.position) == wanted
        nothing = not choice.scorable
        assert choice.reason == (
            "unsure" if wanted[0] == "abort" else "no_signal" if nothing else None
        )
        assert not choice.cut


@pytest.mark.parametrize("name", STREAMS)
def test_observing_changes_no_byte(name: str) -> None:
    """In pieces of 1 byte, 7 bytes or whole, what goes out is what came in, while it comes."""
    body = corpus.response(name).body
    policy = Policy(mode="observe", rule=Rule(signal="mean_prob", below=0.99, first=1))
    for size in (1, 7, len(body)):
        guard = _guard(policy, name)
        actions = guard.receive_head(200, "text/event-stream", None, 0.0)
        for piece in sliced(body, [size]):
            actions += guard.receive_data(piece, 0.0)
        # What is held back is at most an event that is not over yet.
        sent = b"".join(action.data for action in actions if isinstance(action, Send))
        assert body.startswith(sent)
        assert len(sse_events(body[len(sent) :])[0]) <= 1
        actions += guard.receive_eof(0.0, clean=True)
        sent = b"".join(action.data for action in actions if isinstance(action, Send))
        extra = sent.removeprefix(body)
        assert sent.startswith(body)
        # Only an answer that broke off gets something after it: an error, never an end mark.
        assert bool(extra) == (guard.outcome == "upstream_truncated")
        assert b"[DONE]" not in extra
        assert not any(isinstance(action, Cancel) for action in actions)


@pytest.mark.parametrize("name", STREAMS)
def test_enforcing_sends_a_prefix_and_a_tail(name: str) -> None:
    """A cut comes after the deciding event, whole; the hash is that of what a client would get."""
    rule = Rule(signal="mean_prob", below=0.7, first=4)
    path = corpus.RECORDINGS / name
    requested = corpus.asked(name)
    observed = replayed(path, Policy(mode="observe", rule=rule), requested)
    policy = Policy(mode="enforce", rule=rule)
    enforced = replayed(path, policy, requested)

    found = corpus.response(name)
    guard = _guard(policy, name, choices=max(1, len(observed.choices)))
    actions = guard.receive_head(200, "text/event-stream", None, 0.0)
    actions += guard.receive_data(found.body, 0.0)
    actions += guard.receive_eof(0.0, clean=found.clean)
    sent = b"".join(action.data for action in actions if isinstance(action, Send))
    assert enforced.forwarded_sha256 == hashlib.sha256(sent).hexdigest()

    for before, after in zip(observed.choices, enforced.choices, strict=False):
        assert (after.verdict, after.position) == (before.verdict, before.position)
    if enforced.outcome != "aborted":
        assert not any(isinstance(action, Cancel) for action in actions)
        if enforced.outcome != "upstream_truncated" and not any(c.cut for c in enforced.choices):
            assert sent == found.body
        return
    assert actions[-1] == End(True)
    kinds = [type(action) for action in actions]
    assert kinds.index(Cancel) < max(i for i, kind in enumerate(kinds) if kind is Send)
    events, _ = sse_events(sent)
    assert events[-1].data == "[DONE]"
    if len(observed.choices) == 1:
        (choice,) = enforced.choices
        tail = json.loads(events[-2].data)
        assert tail["choices"][0]["finish_reason"] == "content_filter"
        assert tail["streamguard"]["position"] == choice.position
        prefix = sent[: sent.index(events[-2].data.encode()) - len(b"data: ")]
        assert found.body.startswith(prefix)
        assert enforced.events == len(sse_events(prefix)[0])
        # The entries read are those up to the deciding one, and the rest of its event.
        assert choice.position is not None
        assert choice.entries >= choice.position
        assert choice.cut


def test_command_gives_the_same_lines() -> None:
    """`python -m streamguard replay DIR... --json`: one line a file, all fields, exit 0."""
    folders = sorted(str(path) for path in corpus.RECORDINGS.iterdir() if path.is_dir())
    done = subprocess.run(
        [sys.executable, "-m", "streamguard", "replay", *folders, "--json"],
        capture_output=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    by_name = {str(Path(line["path"]).relative_to(corpus.RECORDINGS)): line for line in lines}
    assert len(lines) == len(by_name)
    assert set(by_name) == set(corpus.NAMES)
    for name, line in by_name.items():
        agrees(line, expected_line(name, None), name)


def test_labelled_lines_agree_with_the_oracle() -> None:
    """JSON Lines: a record is scored like the stream it was made from, 5 alternatives asked."""
    rule = RULES[0]
    policy = Policy(mode="observe", rule=Rule(**rule))
    reports = list(replay(corpus.LABELLED, policy, requested=5))
    lines = corpus.LABELLED.read_text(encoding="utf-8").splitlines()
    assert len(reports) == len(lines) == 60
    for report, line in zip(reports, lines, strict=True):
        assert not isinstance(report, InputError)
        record = json.loads(line)
        choice = corpus.from_tokens(record["tokens"])
        verdict, position = scores.verdict(choice, 5, **rule)
        wanted = {
            "id": record["id"],
            "path": str(corpus.LABELLED),
            "dialect": None,
            "outcome": "complete",
            "events": 0,
            "forwarded_sha256": None,
            "choices": [{**scores.figures(choice, 5), "verdict": verdict, "position": position}],
        }
        agrees(report.as_dict(), wanted, record["id"])


def _guard(policy: Policy, name: str, *, choices: int | None = None) -> Guard:
    prepared = Prepared(
        guarded=True,
        dialect="chat",
        body=b"",
        original=b"",
        asked=corpus.asked(name),
        choices=choices,
    )
    return Guard(policy, prepared, id="replay", now=0.0, watch_all=True)
