"""streamguard watches a streaming LLM reply and stops it upstream when its early tokens say so.

The names below are the public interface; everything else may change between versions. They load
on first use, so that `import streamguard` costs nothing that is not needed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from streamguard.core.capabilities import Limits
    from streamguard.core.events import ChoiceReport, StreamReport, Verdict
    from streamguard.core.guard import Clocks, Guard
    from streamguard.core.request import Prepared, prepare
    from streamguard.core.specs import AllOf, AnyOf, FailPolicy, Policy, Quorum, Rule
    from streamguard.core.watch import Watch
    from streamguard.drive import relay
    from streamguard.errors import ConfigError, InputError, StreamguardError

__all__ = [
    "AllOf",
    "AnyOf",
    "ChoiceReport",
    "Clocks",
    "ConfigError",
    "FailPolicy",
    "Guard",
    "InputError",
    "Limits",
    "Policy",
    "Prepared",
    "Quorum",
    "Rule",
    "StreamReport",
    "StreamguardError",
    "Verdict",
    "Watch",
    "prepare",
    "relay",
]

_HOMES: Final = {
    "streamguard.core.capabilities": ("Limits",),
    "streamguard.core.events": ("ChoiceReport", "StreamReport", "Verdict"),
    "streamguard.core.guard": ("Clocks", "Guard"),
    "streamguard.core.request": ("Prepared", "prepare"),
    "streamguard.core.specs": ("AllOf", "AnyOf", "FailPolicy", "Policy", "Quorum", "Rule"),
    "streamguard.core.watch": ("Watch",),
    "streamguard.drive": ("relay",),
    "streamguard.errors": ("ConfigError", "InputError", "StreamguardError"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("streamguard-proxy")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
