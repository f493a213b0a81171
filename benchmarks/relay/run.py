"""A run: subjects started, rounds turned, samples collected."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.relay import load, subjects
from benchmarks.relay.figures import Sample
from benchmarks.relay.load import LoadError
from benchmarks.relay.process import on_core
from benchmarks.relay.scenarios import SCENARIOS, Bench, Scale, Scenario
from benchmarks.relay.sender import Sender
from benchmarks.relay.subjects import Name


def run(
    scale: Scale,
    *,
    scenarios: Sequence[Scenario] = SCENARIOS,
    names: Sequence[Name] = subjects.NAMES,
    tell: Callable[[int, int, str], None] = lambda done, steps, what: None,
) -> list[Sample]:
    """Measure.

    Args:
        scale: how much of everything.
        scenarios: which loads, in this order.
        names: which subjects; nginx only where it is installed.
        tell: of the progress: steps done, steps in all, what comes now.

    Raises:
        LoadError: a subject did not do what a relay does; nothing of this run is worth keeping.
    """
    own_core, subject_core = _cores()
    samples: list[Sample] = []
    with (
        tempfile.TemporaryDirectory(prefix="relay-") as folder,
        load.running() as loop,
        on_core(own_core),
    ):
        sender = Sender(loop)
        with subjects.running(
            names, sender.port, folder=Path(folder), core=subject_core
        ) as running:
            bench = Bench(loop, sender, scale)
            steps = [
                (number, scenario, subject)
                for number in range(1, scale.rounds + 1)
                for scenario in scenarios
                if number == 1 or scenario != "memory"  # later, a process holds what it once had
                for subject in _shuffled(list(running.values()), number)
            ]
            for done, (number, scenario, subject) in enumerate(steps):
                tell(done, len(steps), f"{scenario}: {subjects.LABELS[subject.name]}")
                try:
                    values = bench.sample(scenario, subject)
                except LoadError as error:
                    raise LoadError(f"{scenario}, {subject.name}: {error}") from error
                if values is not None:
                    samples.append(
                        Sample(round=number, scenario=scenario, subject=subject.name, values=values)
                    )
            tell(len(steps), len(steps), "done")
            sender.close()
    return samples


def _cores() -> tuple[int | None, int | None]:
    """The load's core and the subjects'; None for both where there is only one."""
    mine = sorted(os.sched_getaffinity(0))
    return (mine[1], mine[0]) if len(mine) > 1 else (None, None)


def _shuffled(found: list[subjects.Subject], number: int) -> list[subjects.Subject]:
    random.Random(f"{number}-{len(found)}").shuffle(found)  # noqa: S311  # only an order
    return found
