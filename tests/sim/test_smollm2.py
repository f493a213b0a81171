"""The demo's recordings are what their README says: drawn by seed, judged by rule, small, ASCII."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.model.recordings.__main__ import MIN_TOKENS, PER_FAMILY
from tests.model.recordings.answers import payloads, text_of, tokens_of
from tests.model.recordings.figures import OUT
from tests.model.recordings.questions import FAMILIES, MAX_TOKENS, is_right, questions

ROOT = Path(__file__).parent.parent.parent
LINES = (ROOT / OUT).read_text("ascii").splitlines()
RECORDINGS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
README = (ROOT / OUT).with_name("README.md").read_text()


@pytest.mark.parametrize("one", RECORDINGS, ids=lambda one: one["name"])
def test_a_recording_is_judged_by_the_rule(one: dict[str, Any]) -> None:
    """`correct` and `tokens` are what the events say; the question is the one of its name."""
    family, _, rest = one["name"].partition("-")
    (asked,) = [q for q in questions()[family] if q.name.lower() == rest]
    events = list(payloads(one["events"]))

    assert (one["question"], one["truth"]) == (asked.text, asked.truth)
    assert (one["dialect"], one["request"]) == (asked.dialect, asked.request())
    assert one["correct"] is is_right("".join(map(text_of, events)), asked.truth)
    assert one["tokens"] == sum(len(tokens_of(event)) for event in events)
    assert MIN_TOKENS <= one["tokens"] <= MAX_TOKENS
    assert one["events"][-1][1] == "data: [DONE]\n\n"


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_chosen_by_outcome(family: str) -> None:
    """Recordings stand in the order of the draw, and what was passed over is named, by length."""
    order = [f"{family}-{q.name}".lower() for q in questions()[family]]
    kept = [one["name"] for one in RECORDINGS if one["name"].startswith(f"{family}-")]
    asked = order[: order.index(kept[-1]) + 1]

    assert len(kept) == PER_FAMILY
    assert kept == [name for name in asked if name in kept]
    for name in set(asked) - set(kept):
        assert f"`{name}`" in README, name


def test_the_file_is_small_and_tells_nothing_of_its_maker() -> None:
    """It ships in the wheel: 2.5 MB at most, and no path or address of the machine."""
    whole = "\n".join(LINES)

    assert len(whole) < 2_500_000
    assert not any(
        word in whole for word in ("/root", "/home", "/usr", "site-packages", ".gguf", "127.0.0")
    )


def test_the_readme_counts_right() -> None:
    """The counts of the README are those of the file."""
    right = sum(one["correct"] for one in RECORDINGS)

    assert f"{len(RECORDINGS)} answers, {right} right, {len(RECORDINGS) - right} wrong" in README


@pytest.mark.parametrize(
    ("text", "truth", "right"),
    [
        (" 17. (1) The first", "17", True),
        (" 170. (1) The first", "17", False),
        ("The Buenos Aires", "Buenos Aires", True),
        ("Buenos", "Buenos Aires", False),
        ("Cesium. (1)", "Caesium|Cesium", True),
        ("It is Paris.", "Paris", False),
        ("", "Paris", False),
    ],
)
def test_the_rule_reads_the_first_words(text: str, truth: str, right: bool) -> None:
    """Whole words, from the first on, whatever follows."""
    assert is_right(text, truth) is right
