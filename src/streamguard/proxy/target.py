"""Where a request goes: the configured upstream, and never anything the client says.

The upstream is parsed once, at start; the connection uses the parsed parts. A request adds a raw
path and query, byte for byte, or is turned away. Nothing is decoded, normalised or re-quoted, so
that the path we judge is the path the upstream receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from streamguard.errors import ConfigError

_PORTS: Final = {"http": 80, "https": 443}


class BadTarget(ValueError):
    """The request target is not one that can be joined safely."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The one place that requests are sent to.

    Attributes:
        scheme: `http` or `https`.
        host: name or address, without brackets.
        port: always filled.
        authority: for the `Host` field; the port only where it is not the scheme's own.
        prefix: what stands before every path; no slash at its end.
    """

    scheme: str
    host: str
    port: int
    authority: bytes
    prefix: str

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @classmethod
    def parse(cls, url: str) -> Upstream:
        """Read the URL that an SDK would take as its base.

        Args:
            url: as `config.settings` accepted it: absolute, no credentials, query or fragment.

        Raises:
            ConfigError: its path or host name cannot be used. The message never repeats the URL.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or _PORTS[parts.scheme]
        prefix = parts.path.rstrip("/")
        try:
            if prefix:
                _check(prefix)
        except BadTarget:
            raise ConfigError("upstream", "has an ambiguous path", "write it plainly") from None
        try:
            prefix.encode("ascii")
            name = host if ":" in host else host.encode("idna").decode("ascii")
        except UnicodeError:
            raise ConfigError(
                "upstream", "holds characters that no URL has", "percent-encode its path"
            ) from None
        shown = f"[{name}]" if ":" in name else name
        if port != _PORTS[parts.scheme]:
            shown = f"{shown}:{port}"
        return cls(parts.scheme, name, port, shown.encode("ascii"), prefix)

    def target(self, raw: str) -> bytes:
        """Join a raw request target (path and query) to the upstream.

        If the upstream ends in `/v1`, one leading `/v1` of the path is dropped: SDKs put it into
        the base URL, and both spellings must reach the same place.

        Raises:
            BadTarget: not origin form, or a path that another parser might read differently.
        """
        path, mark, query = raw.partition("?")
        _check(path)
        if "#" in query:
            raise BadTarget
        if self.prefix.endswith("/v1") and (path == "/v1" or path.startswith("/v1/")):
            path = path[3:]
        return f"{self.prefix}{path}{mark}{query}".encode("utf-8", "surrogateescape")


def _check(path: str) -> None:
    """Raise BadTarget for paths that mean different things to different readers.

    An `@` is allowed: the target is sent in origin form behind a fixed authority, so it cannot
    become one, and real model names carry it.
    """
    if not path.startswith("/") or path.startswith("//") or "\\" in path or "#" in path:
        raise BadTarget
    # Dots and separators may be spelled in per cent; some servers decode before they normalise,
    # and some strip a `;parameter` from a segment first.
    plain = path.lower().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/")
    for segment in plain.split("/"):
        if segment.partition(";")[0] in (".", ".."):
            raise BadTarget
