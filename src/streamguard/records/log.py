"""The `stream_finished` line: one per accepted request, and it is the `StreamReport`."""

from __future__ import annotations

from typing import Any

from streamguard.core.events import StreamReport


def finished(report: StreamReport, *, method: str) -> dict[str, Any]:
    """The fields of the line.

    Args:
        report: the record.
        method: of the request; the one thing a shell knows that a replay does not.
    """
    return {"method": method, **report.as_dict()}
