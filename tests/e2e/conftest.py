"""Subjects for the lifecycle tests: the installed command, shared by tests with the same flags."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trustme
from tests.support.bench import GUARD, Bench, Serve

Key: TypeAlias = tuple[Any, ...]


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """A certificate authority of this run."""
    return trustme.CA()


@pytest.fixture(scope="session")
def trust(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its certificate as a file."""
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def server_context(authority: trustme.CA, host: str) -> ssl.SSLContext:
    """What a provider of that name presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


@pytest.fixture(scope="session")
def _benches() -> Iterator[dict[Key, Bench]]:
    benches: dict[Key, Bench] = {}
    yield benches
    with ExitStack() as closing:  # closes every one, whichever fails
        for bench in benches.values():
            closing.callback(bench.close)


@pytest.fixture
def serve(_benches: dict[Key, Bench], authority: trustme.CA, trust: Path) -> Iterator[Serve]:
    """A bench with these flags; started once a run, one turn a test.

    Args of the factory:
        flags: after `serve --upstream URL`.
        env: settings by environment.
        host: the provider's name, see `Upstream`.
        tls: the provider speaks TLS, with a certificate the command trusts.
        certified: the name in that certificate, if not the provider's own.
        trusted: False: the command does not know who signed it.
        fresh: a process of its own for this test, closed at its end.
    """
    with ExitStack() as turns:

        def factory(
            *flags: str,
            env: dict[str, str] | None = None,
            host: str = "127.0.0.1",
            tls: bool = False,
            certified: str | None = None,
            trusted: bool = True,
            fresh: bool = False,
        ) -> Bench:
            settings = dict(env or {})
            if tls and trusted:
                settings["SSL_CERT_FILE"] = str(trust)
            key = (flags, tuple(sorted(settings.items())), host, tls, certified)
            bench = None if fresh else _benches.get(key)
            if bench is None:
                context = server_context(authority, certified or host) if tls else None
                bench = Bench.start(flags, env=settings, host=host, tls=context)
                if fresh:
                    turns.callback(bench.close)
                else:
                    _benches[key] = bench
            return turns.enter_context(bench.turn())

        yield factory


@pytest.fixture
def guard(serve: Serve) -> Bench:
    """The common case: guarded, enforced, cut by `finish`, a plain provider."""
    return serve(*GUARD)
