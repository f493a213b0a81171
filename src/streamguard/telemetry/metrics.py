"""What is counted. Every label comes from a closed list, so the number of series is bounded.

Never a model, a path, a host or anything else that a client chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from streamguard.core.events import OpaqueReason, Outcome, StreamReport

Cause: TypeAlias = Literal[
    "unparsable", "no_signal", "encoded", "oversize", "rule_error", "unwatchable"
]

_CAUSES: Final[dict[OpaqueReason, Cause]] = {
    "encoded": "encoded",
    "oversize": "oversize",
    "rule_error": "rule_error",
    "echo": "unwatchable",
    "duplicate_fields": "unwatchable",
    "logprobs_off": "unwatchable",
    "not_sse": "unwatchable",
    "too_few_alternatives": "unwatchable",
    "too_many_alternatives": "unwatchable",
}


class Metrics:
    """One server's counters, in a registry of their own.

    Args:
        log_dropped: how many log lines were lost so far.
    """

    def __init__(self, *, log_dropped: Callable[[], int] = lambda: 0) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self.requests = counter(
            "streamguard_requests_total", "Accepted requests by how they ended.", "outcome"
        )
        self.streams = counter(
            "streamguard_streams_total", "Guarded streams.", "dialect", "mode", "status"
        )
        self.opaque = counter(
            "streamguard_opaque_total", "Streams that could not be watched, by reason.", "reason"
        )
        self.refused = counter(
            "streamguard_refused_total", "Streams whose upstream takes no logprobs fields."
        )
        self.verdicts = counter(
            "streamguard_verdicts_total", "Verdicts per choice.", "verdict", "reason"
        )
        self.fail_open = counter(
            "streamguard_fail_open_total", "Streams passed on unwatched, by cause.", "cause"
        )
        self.rejected = counter(
            "streamguard_rejected_total", "Turned away before a request was accepted."
        )
        self.errors = counter(
            "streamguard_internal_errors_total", "Exceptions that should not have been."
        )
        dropped = Gauge(
            "streamguard_log_dropped_lines",
            "Log lines that could not be written.",
            registry=self.registry,
        )
        dropped.set_function(log_dropped)
        self.inflight = Gauge(
            "streamguard_inflight", "Requests in progress.", registry=self.registry
        )
        for outcome in get_args(Outcome):
            self.requests.labels(outcome)  # a series that is missing reads as no data, not as 0

    def observe(self, report: StreamReport) -> None:
        """Count one finished request."""
        self.requests.labels(report.outcome).inc()
        if report.status is None:
            return
        self.streams.labels(report.dialect or "none", report.mode, report.status).inc()
        if report.opaque_reason is not None:
            self.opaque.labels(report.opaque_reason).inc()
        if report.status == "refused":
            self.refused.inc()
        for choice in report.choices:
            if choice.verdict is not None:
                self.verdicts.labels(choice.verdict, choice.reason or "none").inc()
        for cause in _causes(report):
            self.fail_open.labels(cause).inc()

    def page(self) -> tuple[bytes, bytes]:
        """Content type and text, for a scraper."""
        return CONTENT_TYPE_LATEST.encode("ascii"), generate_latest(self.registry)


def _causes(report: StreamReport) -> set[Cause]:
    """Why this stream, or a part of it, went on unwatched."""
    causes: set[Cause] = set()
    if report.outcome == "aborted" or report.http_status == 422:
        return causes
    if report.opaque_reason is not None and report.opaque_reason in _CAUSES:
        causes.add(_CAUSES[report.opaque_reason])
    if report.status == "refused":
        causes.add("unwatchable")
    if report.status == "unscored":
        causes.add("no_signal")
    if report.unparsable:
        causes.add("unparsable")
    return causes
