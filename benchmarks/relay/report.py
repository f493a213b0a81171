"""The tables, as Markdown, and their place in the page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.relay.figures import Figure, Figures
from benchmarks.relay.scenarios import Scale, Scenario
from benchmarks.relay.subjects import LABELS, NAMES, Name

BEGIN: Final = "<!-- figures: begin -->"
END: Final = "<!-- figures: end -->"
_NONE: Final = "-"


class _Column(NamedTuple):
    """One column: a figure, two figures, or a figure's ratio to an anchor."""

    title: str
    scenario: Scenario
    names: tuple[str, ...]
    form: str = "{:.0f}"
    ratio: Name | None = None

    def cell(self, figures: Figures, subject: Name) -> str:
        cells = [self._text(figures.get(self.scenario, subject, name)) for name in self.names]
        return _NONE if _NONE in cells else " / ".join(cells)

    def _text(self, figure: Figure | None) -> str:
        if figure is None:
            return _NONE
        value = figure.value if self.ratio is None else figure.ratios.get(self.ratio)
        return _NONE if value is None else self.form.format(value)


def _cost(scenario: Scenario, what: str) -> tuple[_Column, ...]:
    names = (f"cpu_us_per_{what}",)
    return (
        _Column("µs", scenario, names, "{:.1f}"),
        _Column("ratio to nginx", scenario, names, "{:.2f}", "nginx"),
        _Column("ratio to plain", scenario, names, "{:.2f}", "plain"),
    )


_PACED: Final = (
    *_cost("paced", "event"),
    _Column("added delay p50 / p99, µs", "paced", ("added_lag_p50_us", "added_lag_p99_us")),
)
_UNPACED: Final = (
    *_cost("unpaced", "event"),
    _Column("events/s", "unpaced", ("events_per_s",), "{:,.0f}"),
)
_REQUEST: Final = (
    *_cost("request", "request"),
    _Column("requests/s", "request", ("requests_per_s",), "{:,.0f}"),
)
_TTFT: Final = (
    _Column("p50 / p99, µs", "ttft", ("ttft_p50_us", "ttft_p99_us")),
    _Column("added p50 / p99, µs", "ttft", ("added_ttft_p50_us", "added_ttft_p99_us")),
)


def _close(scenario: Scenario) -> tuple[_Column, ...]:
    return (
        _Column("p50 / p99, ms", scenario, ("close_p50_ms", "close_p99_ms"), "{:.2f}"),
        _Column("further events, mean", scenario, ("further_events_mean",), "{:.2f}"),
        _Column("most", scenario, ("further_events_max",)),
        _Column("cancels a round", scenario, ("cancels",)),
    )


_MEMORY: Final = (
    _Column("idle, MB", "memory", ("idle_mb",), "{:.1f}"),
    _Column("with the open streams, MB", "memory", ("crowd_mb",), "{:.1f}"),
    _Column("a stream, kB", "memory", ("stream_kb",), "{:.1f}"),
)


def tables(figures: Figures, scale: Scale) -> str:
    """All tables."""
    pace = f"{1 / scale.pace_s:.0f} events a second each"
    parts = [
        ("CPU per event, paced", f"{scale.streams} streams, {pace}.", _PACED),
        (
            "CPU per event, as fast as they are taken",
            f"{scale.long_streams} streams of {scale.long_tokens} tokens, one write per event; "
            "what a read then holds differs from subject to subject.",
            _UNPACED,
        ),
        (
            "CPU per request",
            f"{scale.short_streams} connections, answers of one token.",
            _REQUEST,
        ),
        (
            "Time to the first event",
            f"One probe at a time, direct and through the subject in turns, beside "
            f"{scale.probe_streams} streams of {pace}.",
            _TTFT,
        ),
        (
            "A client leaves: until the upstream sees the close",
            f"{scale.cancel_streams} streams at once, {pace}.",
            _close("gone"),
        ),
        (
            "A verdict: from the write of the deciding event until the upstream sees the close",
            f"{scale.cancel_streams} streams at once, {pace}.",
            _close("verdict"),
        ),
        (
            f"The same, beside {scale.crowd} open streams",
            f"Of {1 / scale.crowd_pace_s:.0f} events a second each.",
            _close("crowded"),
        ),
        ("Memory", f"Resident, idle and with {scale.crowd} open streams.", _MEMORY),
    ]
    return "\n\n".join(_table(figures, *part) for part in parts)


def _table(figures: Figures, title: str, text: str, columns: Sequence[_Column]) -> str:
    rows = []
    for subject in NAMES:
        cells = [column.cell(figures, subject) for column in columns]
        if set(cells) != {_NONE}:
            rows.append([LABELS[subject], *cells])
    lines = [["subject", *(column.title for column in columns)]]
    lines.append(["---", *("---:" for _ in columns)])
    body = "\n".join("| " + " | ".join(line) + " |" for line in [*lines, *rows])
    return f"### {title}\n\n{text}\n\n{body}"


def preface(
    machine: dict[str, str], figures: Figures, *, date: str, command: str, rounds: int
) -> str:
    """When, on what, how, and how quiet it was."""
    versions = ", ".join(
        f"{name} {value}" for name, value in machine.items() if name not in ("processor", "cores")
    )
    absent = (
        "" if "nginx" in figures.subjects() else " nginx was not installed: its rows are missing."
    )
    return (
        f"{date}, `{command}`, {rounds} rounds, on {machine['cores']} cores of "
        f"{machine['processor']}; {versions}.{absent} Of their time, subjects spent "
        f"{figures.waited_share:.1%} waiting for a core (median)."
    )


def write(page: Path, text: str) -> None:
    """Put the text between the marks of the page.

    Raises:
        ValueError: the page does not have both marks, once each and in order.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"{page.name} needs the marks {BEGIN} and {END}, once each")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
