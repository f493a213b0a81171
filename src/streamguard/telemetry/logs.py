"""Structured logs on standard output, redacted by construction.

A line is built from a closed list of events, each with a closed list of fields; what is not listed
is not rendered. Exceptions become a type name and a place, never their arguments, since those
quote headers and bodies. Other libraries' log records are counted by logger and level; their text
is not written at all.

Writing never blocks the event loop: lines go into a bounded queue and a thread writes them. A
blocked pipe, a full disk or a closed output costs lines, which are counted, and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec
import structlog

from streamguard.core.events import StreamReport

STREAM_FINISHED: Final = "stream_finished"
SERVER_STARTED: Final = "server_started"
SERVER_DRAINING: Final = "server_draining"
SERVER_STOPPED: Final = "server_stopped"
REQUEST_REJECTED: Final = "request_rejected"
INTERNAL_ERROR: Final = "internal_error"
LIBRARY_LOG: Final = "library_log"
FILES_LIMITED: Final = "files_limited"

_LIBRARIES: Final = frozenset(("aiohttp", "asyncio"))

QUEUE_LINES: Final = 8192
_BATCH_BYTES: Final = 64 * 1024
_FLUSH_S: Final = 0.5
_TEXT_MAX: Final = 256

_REPORT: Final = frozenset(("method", *StreamReport.__struct_fields__))

FIELDS: Final[Mapping[str, frozenset[str]]] = {
    STREAM_FINISHED: _REPORT,
    SERVER_STARTED: frozenset(
        ("version", "host", "port", "admin_port", "policy", "mode", "streams_max", "loop")
    ),
    SERVER_DRAINING: frozenset(("open", "drain_s")),
    SERVER_STOPPED: frozenset(("requests", "log_dropped")),
    REQUEST_REJECTED: frozenset(("id", "code", "http_status")),
    INTERNAL_ERROR: frozenset(("error", "where", "id")),
    LIBRARY_LOG: frozenset(("library", "error", "where")),
    FILES_LIMITED: frozenset(("files_max", "streams_max")),
}
"""The only events there are, and the only fields each of them shows."""


class Writer:
    """Writes lines to a file descriptor from a thread of its own.

    Args:
        fd: where to.
        lines_max: how many may wait.
    """

    def __init__(self, fd: int, *, lines_max: int = QUEUE_LINES) -> None:
        self._fd = fd
        self._lines_max = lines_max
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._closed = False
        self.dropped = 0
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Take a line; never blocks. A full queue drops it."""
        if self._closed or self._lines.qsize() >= self._lines_max:
            self.dropped += 1
        else:
            self._lines.put(line)

    def close(self, timeout_s: float = _FLUSH_S) -> None:
        """Write what waits, for as long as that may take; then give up."""
        self._closed = True
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            batch = [line]
            size = len(line)
            last = False
            while size < _BATCH_BYTES and not self._lines.empty():
                more = self._lines.get()
                if more is None:
                    last = True
                    break
                batch.append(more)
                size += len(more)
            try:
                self._write_all(b"".join(batch))
            except OSError:  # closed, or full: what cannot be written is lost, and said so
                self.dropped += len(batch)
            if last:
                return

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                select.select([], [self._fd], [], 1.0)


class Log:
    """The server's log: one method, `event`.

    Args:
        write: takes finished lines.
        level: `debug`, `info`, `warning` or `error`.
    """

    def __init__(self, write: Callable[[bytes], None], *, level: str = "info") -> None:
        self._log = structlog.wrap_logger(
            _Lines(write),
            processors=[
                structlog.processors.add_log_level,
                _only_listed,
                _stamp,
                structlog.processors.JSONRenderer(serializer=_encode),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            cache_logger_on_first_use=True,
        )

    def info(self, event: str, **fields: Any) -> None:
        """Something happened."""
        self._log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something should be looked at."""
        self._log.warning(event, **fields)

    def error(self, error: BaseException | None, **fields: Any) -> None:
        """An exception that should not have been: its type and place, nothing it says."""
        self._log.error(INTERNAL_ERROR, error=type_name(error), where=place(error), **fields)

    def take_over_libraries(self) -> None:
        """From now on every standard-library log record becomes one line without its text."""
        root = logging.getLogger()
        root.handlers[:] = [_LibraryHandler(self._log)]
        root.setLevel(logging.WARNING)
        for name in _LIBRARIES:
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True


class _Lines:
    """The end of structlog's chain: takes rendered lines."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def msg(self, line: bytes) -> None:
        self._write(line + b"\n")

    debug = info = warning = error = msg


class _LibraryHandler(logging.Handler):
    def __init__(self, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        library = record.name.partition(".")[0]
        error = record.exc_info[1] if record.exc_info else None
        self._log.warning(
            LIBRARY_LOG,
            library=library if library in _LIBRARIES else "other",
            error=type_name(error),
            where=place(error),
        )


def type_name(error: BaseException | None) -> str | None:
    """The name of an exception's class."""
    return None if error is None else type(error).__name__


def place(error: BaseException | None) -> str | None:
    """Where an exception was raised: `file.py:line`, innermost."""
    trace: TracebackType | None = None if error is None else error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _only_listed(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep the listed fields of a listed event; an unlisted event is not written at all."""
    name = event.get("event")
    allowed = FIELDS.get(name) if isinstance(name, str) else None
    if allowed is None:
        raise structlog.DropEvent
    kept: dict[str, Any] = {"event": name, "level": event["level"]}
    for key, value in event.items():
        if key in allowed:
            kept[key] = value[:_TEXT_MAX] if isinstance(value, str) else value
    return kept


def _stamp(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    now = datetime.fromtimestamp(time.time(), UTC)
    return {"time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **event}


def _encode(event: Any, **_: Any) -> bytes:
    try:
        return msgspec.json.encode(event)
    except UnicodeEncodeError:  # half a surrogate pair, in a model name say
        return json.dumps(event, allow_nan=False).encode("ascii")
