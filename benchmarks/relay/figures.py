"""Many samples become one figure: medians over rounds, and ratios taken within a round."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

import msgspec
from benchmarks.relay.scenarios import Scenario, Values
from benchmarks.relay.subjects import Name

ANCHORS: Final[tuple[Name, ...]] = ("nginx", "plain")
"""What the cost of the others is divided by."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one subject in one round."""

    round: int
    scenario: Scenario
    subject: Name
    values: Values


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number of one subject.

    Attributes:
        value: the median over rounds (of a maximum: the maximum).
        low, high: the smallest and the largest round.
        ratios: to an anchor, the median over rounds of the quotient within a round.
    """

    value: float
    low: float
    high: float
    ratios: dict[Name, float] = {}


class Figures:
    """All figures of a run.

    Args:
        samples: of all rounds.
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._found: dict[tuple[Scenario, Name, str], dict[int, float]] = {}
        for sample in samples:
            for name, value in sample.values.items():
                rounds = self._found.setdefault((sample.scenario, sample.subject, name), {})
                rounds[sample.round] = value

    def get(self, scenario: Scenario, subject: Name, name: str) -> Figure | None:
        """A figure, or None where nothing was measured."""
        rounds = self._found.get((scenario, subject, name))
        if rounds is None:
            return None
        ratios: dict[Name, float] = {}
        for anchor in ANCHORS if name.startswith("cpu_") else ():
            others = self._found.get((scenario, anchor, name), {})
            quotients = [rounds[n] / others[n] for n in rounds if others.get(n)]
            if quotients:
                ratios[anchor] = median(quotients)
        values = rounds.values()
        middle = max(values) if name.endswith("_max") else median(values)
        return Figure(value=middle, low=min(values), high=max(values), ratios=ratios)

    def as_dict(self) -> dict[str, dict[str, dict[str, Figure]]]:
        """Scenario, subject, name: figure."""
        found: dict[str, dict[str, dict[str, Figure]]] = {}
        for scenario, subject, name in self._found:
            figure = self.get(scenario, subject, name)
            assert figure is not None
            found.setdefault(scenario, {}).setdefault(subject, {})[name] = figure
        return found

    def subjects(self) -> set[Name]:
        """Those that were measured."""
        return {subject for _, subject, _ in self._found}

    @property
    def waited_share(self) -> float:
        """The median share of their time in which subjects waited for a core: how noisy it was."""
        shares = [
            value
            for (_, _, name), rounds in self._found.items()
            if name == "waited_share"
            for value in rounds.values()
        ]
        return median(shares) if shares else 0.0
