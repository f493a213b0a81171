"""Replay over every kind of recording. Real ones are in `tests/conformance`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.reference.build import C, D, E, L, T, chat_object, said
from tests.reference.http import chunked

from streamguard.core.events import StreamReport
from streamguard.core.signals import SIGNALS
from streamguard.core.specs import FailPolicy, Policy, Rule
from streamguard.errors import InputError
from streamguard.lab import replay as module
from streamguard.lab.replay import find_recordings, replay

OBSERVE = Policy(mode="observe")
RULE = Rule(signal="mean_prob", below=0.5, first=2)
WATCHED = Policy(mode="observe", rule=RULE)
ENFORCED = Policy(mode="enforce", rule=RULE)
LOW = said(("a", -2.0), ("b", -3.0), ("c", -0.1))


def one(path: Path, data: bytes, policy: Policy = OBSERVE, **options: Any) -> StreamReport:
    path.write_bytes(data)
    (report,) = replay(path, policy, **options)
    assert not isinstance(report, InputError), report
    return report


def problem(path: Path, policy: Policy = OBSERVE) -> str:
    (error,) = replay(path, policy)
    assert isinstance(error, InputError)
    assert error.path == str(path)
    return error.problem


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_response_and_bare_body_say_the_same(tmp_path: Path) -> None:
    """Transfer framing changes nothing but the status that is known."""
    framed = one(tmp_path / "a.http", chunked(LOW), WATCHED).as_dict()
    bare = one(tmp_path / "a.sse", LOW, WATCHED).as_dict()
    assert (framed.pop("http_status"), bare.pop("http_status")) == (200, None)
    assert (framed.pop("path"), bare.pop("path")) == (
        str(tmp_path / "a.http"),
        str(tmp_path / "a.sse"),
    )
    assert framed == bare
    assert framed["forwarded_sha256"] == sha(LOW)


def test_observing_tells_what_enforcing_does(tmp_path: Path) -> None:
    """Observed: the whole stream and the verdict. Enforced: the same verdict, and a cut."""
    path = tmp_path / "a.sse"
    seen = one(path, LOW, WATCHED)
    done = one(path, LOW, ENFORCED)
    assert (seen.outcome, seen.mode, seen.forwarded_sha256) == ("complete", "observe", sha(LOW))
    assert (done.outcome, done.mode) == ("aborted", "enforce")
    (before,), (after,) = seen.choices, done.choices
    assert (before.verdict, before.position, before.reason) == ("abort", 2, "unsure")
    assert (after.verdict, after.position, after.reason) == ("abort", 2, "unsure")
    assert (before.entries, after.entries) == (3, 2)
    assert (before.cut, after.cut) == (False, True)
    assert done.forwarded_sha256 not in (None, sha(LOW))
    # A replay can be repeated.
    assert one(path, LOW, ENFORCED) == done


def test_enforcing_a_sure_stream_sends_it(tmp_path: Path) -> None:
    """No verdict against it: the hash is that of the body."""
    body = said(("a", -0.1), ("b", -0.1))
    report = one(tmp_path / "a.sse", body, ENFORCED)
    assert (report.outcome, report.forwarded_sha256) == ("complete", sha(body))


def test_enforcing_takes_the_number_of_choices_from_the_recording(tmp_path: Path) -> None:
    """One dead choice of two silences itself; the other runs on to its end."""
    # The first is dead before the second has said a word: a guard that expects one would cancel.
    body = b"".join(C(0, t, L(E(t, -3.0, 1))) for t in "abc")
    body += b"".join(C(1, t, L(E(t, -0.1, 1))) for t in "xyz")
    body += C(0, {}, None, "stop") + C(1, {}, None, "stop") + D
    first, second = one(tmp_path / "a.sse", body, ENFORCED).choices
    assert (first.verdict, first.cut) == ("abort", True)
    assert (second.verdict, second.entries, second.finish_reason) == ("commit", 3, "stop")


def test_all_signals_are_always_named(tmp_path: Path) -> None:
    """With a rule on one of them and without any, over an empty choice and a full one."""
    for policy in (OBSERVE, WATCHED):
        for body in (LOW, C(0, "a") + D):
            (choice,) = one(tmp_path / "a.sse", body, policy).choices
            assert set(choice.signals) == set(SIGNALS)


def test_scope_moves_signals_and_verdict_but_not_the_tallies(tmp_path: Path) -> None:
    """Skipped entries count as entries; only signals and rule leave them out."""
    body = said((" ", -9.0), ("a", -0.1), ("b", -0.1))
    rule = Rule(signal="mean_prob", below=0.5, first=2, skip=("blank",))
    (choice,) = one(tmp_path / "a.sse", body, Policy(mode="observe", rule=rule)).choices
    assert (choice.entries, choice.scorable, choice.min_logprob) == (3, 3, -9.0)
    assert (choice.verdict, choice.position) == ("commit", 3)
    assert choice.signals["min_prob"] == pytest.approx(0.904837418)


def test_broken_off_recording_is_read(tmp_path: Path) -> None:
    """What came is scored; observing, nothing of ours is in the hash."""
    body = said(("a", -0.1), ("b", -0.1), fin=None, done=False)
    path = tmp_path / "a.http"
    report = one(path, chunked(body, last=False), WATCHED)
    assert (report.outcome, report.forwarded_sha256) == ("upstream_truncated", sha(body))
    assert report.choices[0].entries == 2
    # Enforcing, a client gets an error event after it.
    enforced = one(path, chunked(body, last=False), ENFORCED)
    assert enforced.outcome == "upstream_truncated"
    assert enforced.forwarded_sha256 != sha(body)


def test_json_answer_is_one_chunk(tmp_path: Path) -> None:
    """All entries of a unary answer; no events; verdict and position as for a stream."""
    chunk = chat_object(0, None, L(E("a", -2.0, 1), E("b", -3.0, 1), E("c", -0.1, 1)), "stop")
    chunk["choices"][0]["message"] = {"content": "abc"}
    del chunk["choices"][0]["delta"]
    data = json.dumps(chunk).encode()
    for name in ("a.json", "a.sse", "a.http"):
        raw = b"HTTP/1.1 200 OK\r\n\r\n" + data if name.endswith("http") else data
        report = one(tmp_path / name, raw, WATCHED)
        assert (report.events, report.outcome, report.dialect) == (0, "complete", "chat")
        assert (report.id, report.forwarded_sha256) == ("x1", sha(data))
        (choice,) = report.choices
        assert (choice.entries, choice.verdict, choice.position) == (3, "abort", 2)
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (b'HTTP/1.1 400 Bad\r\n\r\n{"error": {"message": "logprobs"}}', "complete"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"error": {"message": "x"}}', "upstream_error"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"object": "list", "data": []}', "complete"),
        (b"HTTP/1.1 200 OK\r\n\r\n# HELP metrics\n", "complete"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "complete"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"choices": [', "upstream_truncated"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", "upstream_truncated"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b", "complete"),
    ],
)
def test_answers_without_evidence(tmp_path: Path, raw: bytes, outcome: str) -> None:
    """An error, another API, something compressed: one line, its outcome, and no choice."""
    for policy in (OBSERVE, ENFORCED):
        report = one(tmp_path / "a.http", raw, policy)
        assert (report.outcome, report.choices, report.dialect) == (outcome, [], None)


def test_closed_policy_hashes_the_refusal(tmp_path: Path) -> None:
    """Enforcing `fail closed` over what can't be watched: the client would get our 422 or 502."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b"
    policy = Policy(mode="enforce", rule=RULE, fail=FailPolicy.all("closed"))
    report = one(tmp_path / "a.http", raw, policy)
    assert report.outcome == "upstream_error"
    assert report.forwarded_sha256 not in (sha(b""), sha(b"\x1f\x8b"))


def test_dialect_by_shape_or_by_name(tmp_path: Path) -> None:
    """The shape decides unless it is named; a stream that shows none has none."""
    path = tmp_path / "a.sse"
    body = T("a", L(E("a", -1.0, 1))) + D
    assert one(path, body).dialect == "completions"
    assert one(path, body, dialect="chat").dialect == "chat"
    assert one(path, b'data: {"type": "x"}\n\n').dialect is None
    assert one(path, b'data: {"type": "x"}\n\n', dialect="chat").dialect == "chat"


def test_requested_alternatives_tell_placeholders_apart(tmp_path: Path) -> None:
    """A bare zero counts where none were asked for, or where the server is believed."""
    body = C(0, "a", L(E("a", 0.0), E("b", -1.0))) + D
    counts = [one(tmp_path / "a.sse", body, requested=k).choices[0].scorable for k in (None, 0, 1)]
    assert counts == [2, 2, 1]


def test_json_lines_give_a_report_a_line(tmp_path: Path) -> None:
    """Every record in order, a malformed one as an error in its place."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"id": "one", "tokens": [["a", -2.0, [["a", -2.0]]], ["b", -3.0]]}\n'
        "nonsense\n"
        '{"id": "two", "tokens": [["a", null], ["b", -0.1]]}\n',
        encoding="utf-8",
    )
    first, bad, last = replay(path, ENFORCED)
    assert not isinstance(first, InputError)
    assert not isinstance(last, InputError)
    assert isinstance(bad, InputError)
    assert bad.path == f"{path}:2"
    assert (first.id, first.outcome, first.dialect, first.events) == ("one", "complete", None, 0)
    assert first.forwarded_sha256 is None
    assert (first.choices[0].verdict, first.choices[0].position) == ("abort", 2)
    assert (last.id, last.choices[0].entries, last.choices[0].unscorable) == ("two", 2, 1)
    assert (last.choices[0].verdict, last.choices[0].position) == ("commit", 2)


def test_unreadable_files_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be opened, is no HTTP, no JSON, or too large to be read whole."""
    assert "opened" in problem(tmp_path / "none.http")
    (tmp_path / "a.http").write_bytes(b"data: x\n\n")
    assert "status line" in problem(tmp_path / "a.http")
    (tmp_path / "a.json").write_bytes(b'{"choices": [')
    assert "no JSON" in problem(tmp_path / "a.json")
    monkeypatch.setattr(module, "MAX_JSON_BYTES", 10)
    (tmp_path / "b.json").write_bytes(b'{"choices": []}')
    assert "more than" in problem(tmp_path / "b.json")


def test_odd_names_are_spelled_out(tmp_path: Path) -> None:
    """A file name that is no UTF-8 must not break the line it stands in."""
    path = tmp_path / "a\udcff.sse"
    try:
        path.write_bytes(LOW)
    except OSError:
        pytest.skip("this file system takes no such name")
    (report,) = replay(path, OBSERVE)
    assert not isinstance(report, InputError)
    assert report.path == f"{tmp_path}/a\\udcff.sse"


def test_directories_are_searched(tmp_path: Path) -> None:
    """At any depth, known suffixes only, in order; a file named itself may have any."""
    for name in ("b/c.sse", "a.http", "a.txt", "b/a.jsonl", "B.JSON"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty.http").mkdir()
    found = list(find_recordings([tmp_path, tmp_path / "a.txt", tmp_path / "none"]))
    names = [str(p.relative_to(tmp_path)) for p in found if isinstance(p, Path)]
    assert names == ["B.JSON", "a.http", "b/a.jsonl", "b/c.sse", "a.txt", "none"]
    (error,) = find_recordings([tmp_path / "empty.http"])
    assert isinstance(error, InputError)
