"""The process settings: flags over `STREAMGUARD_*` environment over defaults.

Not the policy (`config.policy`), and not the provider's variables: `OPENAI_BASE_URL` is what
clients of this proxy set, so reading it here would point the proxy at itself. Values never appear
in complaints where they may hold a secret.
"""

from __future__ import annotations

import ipaddress
import resource
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from streamguard.errors import ConfigError

ENV_PREFIX: Final = "STREAMGUARD_"
_FLAGS: Final = ("upstream", "host", "port", "admin_port", "allow_open", "log_level")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65_535)]


def default_streams_max() -> int:
    """512, or a third of the file descriptors: a stream needs two, the rest of the process some."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 512 if soft == resource.RLIM_INFINITY else max(1, min(512, soft // 3))


class Settings(BaseSettings):
    """Everything the process is told besides the policy. Times in seconds, sizes in bytes.

    Build it with `load_settings`, which speaks in `ConfigError`.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=False,
    )

    upstream: str
    """The URL an SDK would take, without a trailing slash."""
    host: str = "127.0.0.1"
    port: Port = 8787
    """0 lets the system choose."""
    admin_port: Port | None = None
    """Health and metrics; None: off."""
    allow_open: bool = False
    """Let others than this machine connect, although nothing asks who they are."""

    connect_s: Seconds = 5.0
    first_byte_s: Seconds = 120.0
    idle_s: Seconds = 120.0
    """Between events; keep-alive comments do not reset it."""
    lifetime_s: Seconds = 1800.0
    head_s: Seconds = 10.0
    """For a client's request head."""
    body_s: Seconds = 60.0
    """For the body of a guarded request."""
    body_max_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 32 * 1024 * 1024
    write_s: Seconds = 60.0
    """How long a client may refuse to take what was sent to it."""
    drain_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 25.0
    """How long running streams may go on after the signal to stop."""
    event_max_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 4 * 1024 * 1024
    streams_max: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default_factory=default_streams_max
    )
    queue_max: Annotated[int, Field(ge=0, le=100_000)] = 64
    queue_wait_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.5
    keepalive_s: Seconds = 75.0
    """How long an idle connection from a client is kept."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("upstream")
    @classmethod
    def _check_upstream(cls, url: str) -> str:
        url = url.strip()
        _split_upstream(url)
        return url.rstrip("/")

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        host = host.strip().removeprefix("[").removesuffix("]")
        if not host:
            raise ConfigError("host", "is empty", "give an address, such as 127.0.0.1")
        return host

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, level: object) -> object:
        return level.lower() if isinstance(level, str) else level

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        if not self.allow_open and not _is_loopback(self.host):
            raise ConfigError(
                "host",
                "others than this machine could connect, and nothing asks who they are",
                "bind 127.0.0.1, or say --allow-open if something in front of it does",
            )
        if self.admin_port and self.admin_port == self.port:
            raise ConfigError("admin_port", "is the port of the proxy itself", "give another one")
        self._check_loop()
        return self

    def _check_loop(self) -> None:
        """Refuse an upstream that is this very proxy: each request would call itself for ever."""
        parts = urlsplit(self.upstream)
        upstream = (parts.hostname or "").lower()
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        here = _is_loopback(upstream) or _is_any(upstream)
        listens_here = _is_loopback(self.host) or _is_any(self.host)
        if port == self.port and (upstream == self.host.lower() or (here and listens_here)):
            raise ConfigError(
                "upstream",
                "is the address this proxy listens on",
                "give the model server's URL, or another --port",
            )


def load_settings(**flags: Any) -> Settings:
    """Settings from flags over the environment.

    Args:
        flags: by field name; None means that the flag was not given.

    Raises:
        ConfigError: naming the setting and what to write instead, never a value that may be
            secret.
    """
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise _translated(error) from None  # the cause carries the values


def _translated(error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False, include_input=False)[0]
    ours = first.get("ctx", {}).get("error")
    if isinstance(ours, ConfigError):
        return ours
    field = str(first["loc"][0]) if first["loc"] else "settings"
    variable = ENV_PREFIX + field.upper()
    flag = "--" + field.replace("_", "-")
    where = f"{flag} or {variable}" if field in _FLAGS else variable
    match first["type"]:
        case "missing":
            return ConfigError(field, "is missing", f"set {where}")
        case "extra_forbidden":
            return ConfigError(field, "is no setting", "leave it out")
        case _:
            problem = first["msg"].removeprefix("Input ").replace("should", "must")
            mend = f"correct {where}"
            if field in ("port", "host"):
                # A Kubernetes service called "streamguard" sets STREAMGUARD_PORT=tcp://... .
                mend += " (in Kubernetes: enableServiceLinks: false)"
            return ConfigError(field, problem, mend)


def _split_upstream(url: str) -> SplitResult:
    """Take the URL apart, refusing what can't be an upstream. No complaint quotes it."""
    mend = "give a URL such as https://api.openai.com/v1"
    if any(ord(c) <= 0x20 or ord(c) == 0x7F for c in url):
        raise ConfigError("upstream", "holds white space or control characters", mend)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # Not chained: the cause quotes the URL.
        raise ConfigError("upstream", "is not a valid URL", mend) from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ConfigError("upstream", "does not begin with http:// or https://", mend)
    if "@" in parts.netloc:
        raise ConfigError(
            "upstream",
            "carries a user name or password",
            "leave them out: clients send their own key, and it is passed on",
        )
    if "?" in url or "#" in url:
        raise ConfigError("upstream", "has a query or a fragment", "leave it out")
    if not parts.hostname or port == 0:
        raise ConfigError("upstream", "names no host, or port 0", mend)
    return parts


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
