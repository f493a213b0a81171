"""Recordings: read, refused with a reason, and sent with or without their evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.recordings import recording, write
from tests.support.streams import DONE, event, nulled

from streamguard.errors import InputError
from streamguard.sim.recordings import Recording, load_recordings, without_logprobs


def read(line: dict[str, Any]) -> Recording:
    """One line as the provider reads it."""
    return msgspec.convert(line, Recording)


def test_a_folder_is_read(tmp_path: Path) -> None:
    """Every line of every .jsonl, by name; other files are not looked at."""
    write(tmp_path, recording("one", [0.9]), recording("two", [0.9], dialect="completions"))
    (tmp_path / "zzz.jsonl").write_text(json.dumps(recording("three", [0.5])) + "\n")
    (tmp_path / "LICENSE").write_text("none")

    assert list(load_recordings(tmp_path)) == ["one", "two", "three"]


def test_what_comes_with_the_package_can_be_played() -> None:
    """Each has its tokens counted, and events in the order of their times."""
    for found in load_recordings().values():
        times = [at_ms for at_ms, _ in found.events]
        assert times == sorted(times)
        assert sum(found.token_counts()) == found.tokens
        assert (
            b"".join(e.data for e in found.send(logprobs=True))
            == "".join(text for _, text in found.events).encode()
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "Über"}, "$.name"),
        ({"dialect": "soap"}, "$.dialect"),
        ({"correct": "yes"}, "$.correct"),
        ({"status": 500}, "$.status"),
        ({"events": []}, "$.events"),
        ({"tokens": 0}, "$.tokens"),
        ({"tokens": 1}, "has 2 entries, more than its tokens"),
        ({"events": [[1.0, "data: {\n\n"]]}, "is no recording"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """The complaint names file and line."""
    write(tmp_path, recording("fine", [0.9]), {**recording("odd", [0.9, 0.8]), **change})
    with pytest.raises(InputError) as caught:
        load_recordings(tmp_path)
    assert str(caught.value).startswith("made-up.jsonl, line 2: ")
    assert says in str(caught.value)


def test_names_are_unique(tmp_path: Path) -> None:
    """Two answers of one name can't both be meant."""
    write(tmp_path, recording("one", [0.9]), recording("one", [0.8]))
    with pytest.raises(InputError, match="there is a 'one' already"):
        load_recordings(tmp_path)


def test_tokens_without_an_entry_go_with_the_finish() -> None:
    """A server that gives no entry for the end of the text has still generated it."""
    found = read(recording("one", [0.9, 0.8], tokens=3))
    # role, two tokens, finish, [DONE]
    assert found.token_counts() == [0, 1, 1, 1, 0]


def chat(*, null: bool) -> list[str]:
    """A stream of a server that writes null, or one that leaves the member out."""
    entry = {"token": 'a"logprobs": [', "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": 'say \\"logprobs": 1'}, "finish_reason": None}
    scored = {**choice, "logprobs": {"content": [entry, entry]}}
    first = {"logprobs": {"content": [entry]}, "index": 0, "delta": {}, "finish_reason": None}
    last: dict[str, Any] = {
        "index": 0,
        "delta": {},
        **({"logprobs": None} if null else {}),
        "finish_reason": "stop",
    }
    return [
        event({"choices": [scored]}).decode(),
        event({"choices": [first, {**scored, "index": 1}]}).decode(),
        event({"choices": [last]}).decode(),
        DONE.decode(),
    ]


@pytest.mark.parametrize("null", [True, False])
def test_evidence_is_left_out_as_the_server_leaves_it_out(null: bool) -> None:
    """Null where its other events have null; no member where they have none."""
    events = [(float(n), text) for n, text in enumerate(chat(null=null))]
    found = read({**recording("one", [0.9] * 5), "events": events, "tokens": 5})
    sent = [e.data.decode() for e in found.send(logprobs=False)]

    for before, after in zip(chat(null=null)[:-1], sent[:-1], strict=True):
        old, new = (json.loads(text.removeprefix("data: ")) for text in (before, after))
        for choice in old["choices"]:
            if null:
                choice["logprobs"] = None
            else:
                choice.pop("logprobs", None)
        assert new == old
    assert [e.tokens for e in found.send(logprobs=False)] == [2, 3, 0, 0]


def test_nothing_but_the_evidence_is_touched() -> None:
    """Spaces, order and line ends stay; text that looks like the member is text."""
    text = "".join(chat(null=True)).replace("\n\n", "\r\n\r\n")
    assert without_logprobs(text, "null").encode() == nulled(text.encode())
