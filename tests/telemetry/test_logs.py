"""The log: closed lists, one line per event, and a writer that is never in the way."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streamguard.telemetry.logs import (
    INTERNAL_ERROR,
    LIBRARY_LOG,
    REQUEST_REJECTED,
    STREAM_FINISHED,
    Log,
    Writer,
    place,
)

SECRET = "sk-a-secret"


class Lines:
    """What a log wrote."""

    def __init__(self, level: str = "info") -> None:
        self.raw: list[bytes] = []
        self.log = Log(self.raw.append, level=level)

    @property
    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.raw]


def raised(text: str) -> Exception:
    """An exception with a trace and a text that must not show."""
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_a_listed_field_shows_and_no_other() -> None:
    """A field that nobody listed is not rendered, whatever it holds."""
    lines = Lines()
    lines.log.info(REQUEST_REJECTED, code="bad_target", headers=SECRET, http_status=400)

    (line,) = lines.read
    assert line.pop("time").endswith("Z")
    assert line == {
        "event": "request_rejected",
        "level": "info",
        "code": "bad_target",
        "http_status": 400,
    }


def test_an_unlisted_event_is_not_written() -> None:
    """A sentence is no event."""
    lines = Lines()
    sentence = f"request with {SECRET}"
    lines.log.info(sentence)
    assert lines.raw == []


def test_one_line_per_event() -> None:
    """A value cannot begin a second line, and long texts are cut."""
    lines = Lines()
    lines.log.info(STREAM_FINISHED, path='a\n{"event": "x"}\u2028' + "y" * 999)

    assert lines.raw[0].count(b"\n") == 1
    assert len(lines.read[0]["path"]) == 256


@pytest.mark.parametrize("value", ["\ud800", float("nan"), "\x00"])
def test_odd_values_do_not_stop_the_log(value: object) -> None:
    """Half a surrogate pair from a model name, a number that is none."""
    lines = Lines()
    lines.log.info(STREAM_FINISHED, model=value)
    assert len(lines.read) == 1


def test_an_exception_is_a_type_and_a_place() -> None:
    """Its arguments may quote a header; its frames hold keys."""
    lines = Lines()
    lines.log.error(raised(SECRET))

    (line,) = lines.read
    assert (line["event"], line["error"]) == (INTERNAL_ERROR, "ValueError")
    assert line["where"].startswith("test_logs.py:")
    assert SECRET.encode() not in lines.raw[0]
    assert place(None) is None


@pytest.fixture
def root() -> Iterator[None]:
    """The standard library's loggers, put back afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize(("name", "shown"), [("aiohttp.server", "aiohttp"), (SECRET, "other")])
@pytest.mark.usefixtures("root")
def test_libraries_are_heard_without_their_words(name: str, shown: str) -> None:
    """A library's record is one line with its name, if known, and the type of its exception."""
    lines = Lines()
    lines.log.take_over_libraries()
    logging.getLogger(name).error("key %s", SECRET, exc_info=raised(SECRET))

    (line,) = lines.read
    assert (line["event"], line["library"], line["error"]) == (LIBRARY_LOG, shown, "ValueError")
    assert SECRET.encode() not in lines.raw[0]


def test_the_level_filters() -> None:
    """Below the level nothing is written."""
    lines = Lines(level="error")
    lines.log.info(STREAM_FINISHED, id="1")
    lines.log.error(None)
    assert [line["event"] for line in lines.read] == [INTERNAL_ERROR]


def test_the_writer_writes_in_order() -> None:
    """Everything that was taken, in the order in which it was."""
    reading, writing = os.pipe()
    writer = Writer(writing)
    sent = [b"%d\n" % number for number in range(2000)]
    for line in sent:
        writer.write(line)
    writer.close(5)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor, not a path
        assert pipe.readlines() == sent
    assert writer.dropped == 0


def test_a_blocked_pipe_costs_lines_and_no_time() -> None:
    """Nobody reads: the queue fills, the rest is dropped and counted, no call waits."""
    reading, writing = os.pipe()
    writer = Writer(writing, lines_max=4)
    done = threading.Event()

    def write() -> None:
        for _ in range(100):
            writer.write(b"x" * 100_000)
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(5)
    assert writer.dropped >= 90
    os.close(reading)  # lets the writer's thread go
    writer.close(5)
    os.close(writing)


def test_a_closed_output_costs_lines_only() -> None:
    """The reader is gone: every line is counted as lost, nothing is raised."""
    reading, writing = os.pipe()
    os.close(reading)
    writer = Writer(writing)
    for _ in range(10):
        writer.write(b"x\n")
    writer.close(5)
    os.close(writing)
    assert writer.dropped == 10
