"""One provider, one running command in front of it, and the books kept over both.

Processes are shared between tests that use the same flags: starting one costs more than most
tests. A `Bench` therefore has a `turn` per test, which starts new records on both sides and, at
its end, checks what must hold after every test: one `stream_finished` record per request (I5),
nothing in flight, no script of the provider that failed.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.support.client import Answer, Client
from tests.support.command import CRASH_RECORDS, Command, Record, until
from tests.support.streams import PATHS, Dialect, request
from tests.support.upstream import Upstream

# One look, at the third scorable token: a stream of improbable tokens dies there.
GUARD = ("--signal", "mean_prob", "--below", "0.5", "--first", "3")

# The widest a test allows between a decision and what must follow from it "at once", in seconds.
WIDE_S = 0.25

OUTCOMES = frozenset(
    {
        "complete",
        "aborted",
        "client_gone",
        "upstream_refused",
        "upstream_error",
        "upstream_truncated",
        "timeout_connect",
        "timeout_first_byte",
        "timeout_idle",
        "timeout_lifetime",
        "timeout_write",
        "overload",
        "bad_request",
        "internal_error",
        "shutdown",
    }
)


@dataclass(slots=True)
class Bench:
    """The pair, and the count of what was sent in this turn.

    Attributes:
        extra: requests sent by other means than `client` (an SDK), and connections that the
            subject turns away without one.
        uncounted: this turn sends what may or may not be a request; its records are not counted.
    """

    upstream: Upstream
    command: Command
    extra: int = 0
    uncounted: bool = False
    _clients: list[Client] = field(default_factory=list)
    _booked: int = 0
    _finished_before: int = 0
    _crashed_before: int = 0

    @classmethod
    def start(
        cls,
        flags: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        base: str = "/v1",
    ) -> Bench:
        """A provider and a command that points to it."""
        upstream = Upstream(host, tls=tls)
        command = Command(["--upstream", upstream.url + base, *flags], env=env)
        command.started()  # so that no test's clock runs while the process starts
        return cls(upstream, command)

    def close(self) -> None:
        """Take both down and check their logs."""
        try:
            self.command.close()
        finally:
            self.upstream.close()

    # ------------------------------------------------------------------ one test

    @contextmanager
    def turn(self) -> Iterator[Bench]:
        """A test's turn: new records, and the books checked at its end."""
        self.upstream.forget()
        self._clients.clear()
        self.extra = 0
        self.uncounted = False
        yield self
        self.hang_up()
        try:
            if not self.uncounted:
                self._check_books()
        finally:  # a turn that failed must not fail the next one too
            self._booked = len(self._ended())
            self._finished_before = len(self.command.records("stream_finished"))
            self._crashed_before = self._crashes()

    def _check_books(self) -> None:
        expected = sum(client.requests for client in self._clients) + self.extra
        until(
            lambda: len(self._ended()) >= self._booked + expected,
            f"{expected} requests are booked: {self.command.stdout[-3000:]}",
        )
        found = self._ended()[self._booked :]
        assert len(found) == expected, f"{len(found)} records for {expected} requests: {found}"
        assert {record["outcome"] for record in found if "outcome" in record} <= OUTCOMES
        ids = [record["id"] for record in found if "outcome" in record]
        assert len(set(ids)) == len(ids), "an id stands twice"
        assert not self.upstream.errors, self.upstream.errors
        assert self._crashes() == self._crashed_before, self.command.stdout[-2000:]

    def _ended(self) -> list[Record]:
        """What was written at the end of a request, and of what never became one (no id)."""
        return [
            record
            for record in self.command.records()
            if record["event"] == "stream_finished"
            or (record["event"] == "request_rejected" and "id" not in record)
        ]

    def _crashes(self) -> int:
        return sum(len(self.command.records(event)) for event in CRASH_RECORDS)

    def hang_up(self) -> None:
        """Close every connection of this turn."""
        for client in self._clients:
            client.sock.close()

    def client(self) -> Client:
        """A new connection to the command."""
        client = Client(self.command.port)
        self._clients.append(client)
        return client

    def ask(self, dialect: Dialect, *fields: str, path: str | None = None, **more: Any) -> Client:
        """Send one streaming request; the answer is the caller's to read."""
        client = self.client()
        client.request("POST", path or PATHS[dialect], request(dialect, **more), fields)
        return client

    def stream(self, dialect: Dialect, *fields: str, **more: Any) -> Answer:
        """Send one streaming request and read its whole answer."""
        return self.ask(dialect, *fields, **more).answer()

    def _finished(self, count: int) -> list[Record]:
        before = self._finished_before
        return self.command.wait_records("stream_finished", before + count)[before:]

    def record(self) -> Record:
        """The record of the only request of this turn, waiting for it."""
        (record,) = self._finished(1)
        return record

    def records(self, count: int) -> list[Record]:
        """The records of the first `count` requests of this turn that ended, in that order."""
        return self._finished(count)

    def settled(self, sockets: int) -> None:
        """Hang up, and wait until the command holds at most that many sockets (I7)."""
        self.hang_up()
        until(
            lambda: self.command.sockets() <= sockets,
            f"at most {sockets} sockets, not {self.command.sockets()}",
        )


Serve: TypeAlias = Callable[..., Bench]
"""The factory fixture of `tests/e2e/conftest.py`."""
