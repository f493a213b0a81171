"""Whether an early look tells right from wrong in the demo's recordings.

Prints, over all recordings and by family, the AUROC of two signals at some horizons (blank tokens
skipped): the chance that a right answer scores higher than a wrong one, ties counted half. A few
dozen answers leave a wide interval, so that is printed too: 95%, by bootstrap with a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.model.recordings.answers import payloads, tokens_of

OUT: Final = Path("src/streamguard/sim/recordings/smollm2.jsonl")
HORIZONS: Final = (1, 2, 3, 4, 6, 8, 12, 20)
DRAWS: Final = 2_000

Scored: TypeAlias = list[tuple[float, bool]]


def mean_prob(logprobs: list[float]) -> float:
    """Per-token geometric mean."""
    return math.exp(sum(logprobs) / len(logprobs))


def min_prob(logprobs: list[float]) -> float:
    """The weakest token."""
    return math.exp(min(logprobs))


SIGNALS: Final[dict[str, Callable[[list[float]], float]]] = {
    "mean_prob": mean_prob,  # at horizon 1 this is first_prob
    "min_prob": min_prob,
}


def auroc(scored: Scored) -> float | None:
    """P(score of a right one > score of a wrong one), ties half; None where one side is empty."""
    right = [score for score, correct in scored if correct]
    wrong = [score for score, correct in scored if not correct]
    if not right or not wrong:
        return None
    wins = sum((r > w) + (r == w) / 2 for r in right for w in wrong)
    return wins / (len(right) * len(wrong))


def interval(scored: Scored) -> tuple[float, float]:
    """Its 95% bootstrap interval."""
    draw = random.Random(1)
    found = [auroc(draw.choices(scored, k=len(scored))) for _ in range(DRAWS)]
    known = sorted(value for value in found if value is not None)
    return known[int(0.025 * len(known))], known[int(0.975 * len(known))]


def scores(recordings: list[dict[str, Any]], signal: str, horizon: int) -> Scored:
    """Each recording's signal at its horizon-th token that is not blank."""
    found = []
    for one in recordings:
        tokens = [pair for event in payloads(one["events"]) for pair in tokens_of(event)]
        seen = [logprob for token, logprob in tokens if token.strip()]
        found.append((SIGNALS[signal](seen[:horizon]), bool(one["correct"])))
    return found


def main() -> None:
    """Print the tables."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("file", type=Path, nargs="?", default=OUT)
    lines = arguments.parse_args().file.read_text("ascii").splitlines()
    recordings: list[dict[str, Any]] = [json.loads(line) for line in lines]
    families: dict[str, list[dict[str, Any]]] = {"all": recordings}
    for one in recordings:
        families.setdefault(one["name"].partition("-")[0], []).append(one)
    for family, members in families.items():
        right = sum(one["correct"] for one in members)
        sys.stdout.write(f"{family}: {len(members)} answers, {right} right\n")
        for signal in SIGNALS:
            for horizon in HORIZONS:
                scored = scores(members, signal, horizon)
                value = auroc(scored)
                if value is None:
                    continue
                low, high = interval(scored)
                sys.stdout.write(f"  {signal}@{horizon:<3} {value:.2f} [{low:.2f}, {high:.2f}]\n")


if __name__ == "__main__":
    main()
