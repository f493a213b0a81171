"""How the demo looks: a table while it runs, a summary when it is over, and a still as SVG."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamguard.demo.cases import CAVEAT, RULE, flags
from streamguard.demo.stream import Stream

WIDTH: Final = 130
"""Of the still, and of a table written into a pipe."""
_WIDE: Final = 100
_BAR: Final = 24
_NARROW: Final = 8
_BLOCKS: Final = "▁▂▃▄▅▆▇"  # a full block would touch the row above
_LOW, _HIGH, _QUIET = "red", "green", "bright_black"
_BAD, _GOOD = "bold red", "green"

# rich's own frame fetches fonts from elsewhere; a picture should fetch nothing.
_SVG: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def table(streams: Sequence[Stream], width: int = WIDTH) -> Table:
    """One row a stream, as it stands, for a screen of so many columns."""
    columns = [c for c in _COLUMNS if width >= _WIDE or not c.only_wide]
    gaps = 2 * (len(columns) + 1)
    free = width - gaps - sum(column.width for column in columns)
    bar = min(_BAR, max(_NARROW, free * 2 // 5))
    question = max(_NARROW, free - bar)
    built = Table(box=None, header_style="bold", pad_edge=False)
    built.add_column("question", no_wrap=True, width=question)
    built.add_column(f"confidence\n({RULE.signal})", no_wrap=True, width=bar)
    for column in columns:
        built.add_column(column.title, justify=column.justify, no_wrap=True, width=column.width)
    for stream in streams:
        built.add_row(
            Text(" ".join(stream.case.recording.question.split())),
            _bar(stream, bar),
            *(column.cell(stream) for column in columns),
        )
    return built


def summary(streams: Sequence[Stream], problems: Sequence[str], speed: float) -> RenderableType:
    """What came of it, in plain words."""
    fates = Counter(stream.fate for stream in streams)
    lines = [
        Text(),
        Text.assemble(
            ("cut and wrong ", "bold"),
            (str(fates["cut and wrong"]), _GOOD),
            ("   cut and right (false aborts) ", "bold"),
            (str(fates["cut and right"]), _BAD if fates["cut and right"] else _GOOD),
            ("   kept and wrong ", "bold"),
            str(fates["kept and wrong"]),
            ("   kept and right ", "bold"),
            (str(fates["kept and right"]), _GOOD),
        ),
        Text(
            f"{not_generated(streams)} of {sum(s.tokens_recorded for s in streams)} recorded tokens"
            " not generated (the recorded length minus what the provider sent)"
        ),
        Text(f"policy: {' '.join(flags(RULE))}"),
        Text(CAVEAT, style="italic"),
        Text(f"real answers of a small model, played {speed:.3g} times as fast", style=_QUIET),
    ]
    if problems:
        lines += [Text(f"FAILED  {problem}", style=_BAD) for problem in problems]
    else:
        lines.append(
            Text(
                "the provider saw every cut; every uncut stream arrived byte for byte"
                " (injected logprobs taken out again)",
                style=_GOOD,
            )
        )
    return Group(*lines)


def as_json(streams: Sequence[Stream]) -> dict[str, Any]:
    """The result, for programs."""
    return {
        "streams": [stream.as_dict() for stream in streams],
        "not_generated_tokens": not_generated(streams),
        "false_aborts": sum(stream.fate == "cut and right" for stream in streams),
    }


def not_generated(streams: Sequence[Stream]) -> int:
    """Over all streams."""
    return sum(stream.not_generated for stream in streams)


def write_svg(path: Path, *parts: RenderableType) -> None:
    """A still."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for part in parts:
        console.print(part)
    svg = console.export_svg(title="streamguard demo", code_format=_SVG, unique_id="demo")
    path.write_text(svg, encoding="utf-8")


def _bar(stream: Stream, cells: int) -> Text:
    """The signal along the answer; what is not there (yet, or ever) as dots.

    Coloured against the bound up to where the rule looks; after that nobody judges any more.
    """
    course = stream.case.course
    known = min(stream.events, len(course))
    if stream.case.deciding is not None and (stream.cut or stream.case.cuts):
        known = min(known, stream.case.deciding)  # the rest of the events are the proxy's own
    bar = Text()
    for cell in range(cells):
        start = cell * len(course) // cells
        stop = max(start + 1, (cell + 1) * len(course) // cells)
        values = [value for value in course[start : min(stop, known)] if value is not None]
        if values:
            value = values[-1]
            height = min(len(_BLOCKS) - 1, max(0, int(value * len(_BLOCKS))))
            judged = stream.case.deciding is None or start < stream.case.deciding
            low = value < RULE.below
            bar.append(_BLOCKS[height], style=(_LOW if low else _HIGH) if judged else _QUIET)
        else:
            bar.append("·", style=_QUIET)
    return bar


def _score(stream: Stream) -> Text:
    score, threshold = stream.score, stream.threshold
    if score is None or threshold is None:
        return Text()
    low = stream.verdict == "abort"
    return Text(f"{score:.3f} {'<' if low else '≥'} {threshold:g}", style=_LOW if low else _HIGH)


def _verdict(stream: Stream) -> Text:
    if stream.problem is not None:
        return Text(stream.problem, style=_BAD)
    if stream.report is None:
        return Text("streaming" if stream.events else "waiting", style=_QUIET)
    if stream.cut:
        return Text(f"cut at {stream.position}", style="bold")
    return Text("kept" if stream.verdict is not None else "no verdict")


def _answer(stream: Stream) -> Text:
    """Whether it was right; in red what a guard should not have done."""
    if not stream.over:
        return Text()
    right = stream.case.recording.correct
    regret = stream.cut == right
    return Text("right" if right else "wrong", style=_LOW if regret else _HIGH)


def _asks(stream: Stream) -> Text:
    """Who asks for the logprobs: the client, or the proxy in its place."""
    return Text("asked") if stream.case.asks else Text("injected", style=_QUIET)


def _sent(stream: Stream) -> Text:
    return Text(f"{stream.tokens_sent}/{stream.tokens_recorded}" if stream.line else "")


def _not_generated(stream: Stream) -> Text:
    return Text(str(stream.not_generated) if stream.cut and stream.line else "")


def _closed(stream: Stream) -> Text:
    return Text("" if stream.closed_ms is None else f"{stream.closed_ms:.1f} ms")


class _Column(NamedTuple):
    title: str
    width: int
    cell: Callable[[Stream], Text]
    justify: Literal["left", "right"] = "left"
    only_wide: bool = False


_COLUMNS: Final = (
    _Column("logprobs", 8, _asks, only_wide=True),
    _Column("score", 11, _score),
    _Column("verdict", 9, _verdict),
    _Column("sent", 7, _sent, "right", only_wide=True),
    _Column("not\ngenerated", 9, _not_generated, "right"),
    _Column("upstream\nclosed", 8, _closed, "right"),
    _Column("answer", 6, _answer),
)
