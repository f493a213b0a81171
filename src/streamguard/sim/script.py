"""Model names and script files: what a request's model stands for.

    generated                          a generated answer, with the defaults of `Generated`
    generated?course=dip&at=12         the same, options in the name
    recorded/NAME                      a recorded answer, at the pace it was recorded
    recorded/NAME?speed=10
    fault/KIND?after=3&length=40       a generated answer with a fault (`sim.faults`)

A script (TOML) gives names of one's own, and what no model name can say:

    speed = 5.0                        # recorded answers, unless the model says otherwise

    [on_accept]                        # before any request: connections reset, or left in silence
    kind = "rst"                       # or "silent"
    connections = 3                    # only so many; the later ones are served

    [models.doubtful]
    generated = {course = "dip", at = 12, low = 0.02, length = 300}
    fault = {kind = "reset_peer", after = 40}

    [models.slow-capital]
    recorded = "capital-of-france"
    speed = 0.5

Unknown keys are refused, and every complaint says where and what may stand there.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from streamguard.errors import ConfigError
from streamguard.sim.faults import FAULTS, Fault, Millis

_T = TypeVar("_T")

Speed = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Whole = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """An answer made up on the spot.

    Attributes:
        length: tokens per choice.
        course: of the tokens' probability: `constant`; `falling` from `probability` to `low` over
            the length; `dip`: `low` at the tokens `at` to `at + width - 1` (1-based); `list`:
            `probabilities`, round and round.
        pace_ms: from token to token.
        shape: whose chunks to write; `path`: those of the path that was asked.
        choices: answers per request; None: as many as the request's `n`.
        entries_per_event: tokens in one event.
        alternatives: listed per token; None: as many as the request asks for.
        line_end: of the events.
        finish_reason: in the last chunk of a choice.
    """

    length: Whole = 120
    course: Literal["constant", "falling", "dip", "list"] = "constant"
    probability: Probability = 0.9
    low: Probability = 0.05
    at: Whole = 10
    width: Whole = 1
    probabilities: tuple[Probability, ...] = ()
    pace_ms: Millis = 10.0
    shape: Literal["path", "chat", "completions"] = "path"
    choices: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    entries_per_event: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    alternatives: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    line_end: Literal["lf", "crlf", "cr"] = "lf"
    finish_reason: Literal["stop", "length", "content_filter"] = "stop"

    def __post_init__(self) -> None:
        """Check what one field alone can't say."""
        if (self.course == "list") != bool(self.probabilities):
            raise ValueError('`probabilities` belongs to `course = "list"`, and it to them')

    def logprob(self, number: int) -> float:
        """The log-probability (natural log) of the `number`-th token, 1-based."""
        return math.log(self._probability(number))

    def _probability(self, number: int) -> float:
        match self.course:
            case "constant":
                return self.probability
            case "falling":
                share = (number - 1) / max(1, self.length - 1)
                return self.probability + (self.low - self.probability) * share
            case "dip":
                inside = self.at <= number < self.at + self.width
                return self.low if inside else self.probability
            case "list":
                return self.probabilities[(number - 1) % len(self.probabilities)]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What one model name stands for: a recording or a generated answer, perhaps with a fault."""

    recorded: str | None = None
    speed: float | None = None
    generated: Generated = Generated()
    fault: Fault | None = None


class OnAccept(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to the first `connections` connections instead of being served."""

    kind: Literal["rst", "silent"]
    connections: Whole = 1


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A script file, read."""

    speed: float = 1.0
    on_accept: OnAccept | None = None
    models: Mapping[str, Model] = {}


# --------------------------------------------------------------------------- names


def resolve(name: str, script: Script, recordings: Container[str]) -> Model:
    """What a request's `model` stands for.

    Args:
        name: as the request has it.
        script: names given there come first.
        recordings: the names there are.

    Raises:
        ConfigError: no such model, or options it does not have.
    """
    known = script.models.get(name)
    if known is not None:
        return known
    bare, _, query = name.partition("?")
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    if "probabilities" in options:
        options["probabilities"] = options["probabilities"].split(",")
    kind, _, rest = bare.partition("/")
    match kind, rest:
        case "generated", "":
            return Model(generated=_convert("model", options, Generated, strict=False))
        case "recorded", _ if rest in recordings:
            _known("model", options, ("speed",))
            return Model(
                recorded=rest,
                speed=_value("model.speed", options.get("speed"), Speed | None, strict=False),
            )
        case "fault", _ if rest in FAULTS:
            own = {key: options.pop(key) for key in FAULTS[rest].__struct_fields__ & options.keys()}
            return Model(
                generated=_convert("model", options, Generated, strict=False),
                fault=_convert("model", own, FAULTS[rest], strict=False),
            )
        case _:
            names = ["generated", *(f"fault/{word}" for word in FAULTS), *script.models]
            raise ConfigError("model", f"there is no {name[:80]!r}", _suggestion(bare, names))


# --------------------------------------------------------------------------- files


def load_script(path: Path, recordings: Container[str]) -> Script:
    """Read a script file.

    Args:
        path: the TOML file.
        recordings: the names that `recorded` may have.

    Raises:
        ConfigError: it can't be read, is no TOML, or says something that can't be meant.
    """
    try:
        table = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(str(path), reason, "name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "is not UTF-8", "save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), f"is not valid TOML: {error}", "mend it there") from error
    try:
        return _script(table, recordings)
    except ConfigError as error:
        raise error.at(f"{path}: {error.field}") from error


def _script(table: dict[str, Any], recordings: Container[str]) -> Script:
    _known("", table, ("speed", "on_accept", "models"))
    accept = table.get("on_accept")
    models = _table("models", table.get("models", {}))
    return Script(
        speed=_value("speed", table.get("speed", 1.0), Speed),
        on_accept=None if accept is None else _convert("on_accept", accept, OnAccept),
        models={
            name: _model(f"models.{name}", _table(f"models.{name}", value), recordings)
            for name, value in models.items()
        },
    )


def _model(where: str, table: dict[str, Any], recordings: Container[str]) -> Model:
    _known(where, table, Model.__struct_fields__)
    recorded = _value(f"{where}.recorded", table.get("recorded"), str | None)
    if recorded is not None and recorded not in recordings:
        raise ConfigError(f"{where}.recorded", "there is no such recording", "see GET /v1/models")
    if recorded is not None and "generated" in table:
        raise ConfigError(where, "is both recorded and generated", "keep one of the two")
    if recorded is None and "speed" in table:
        raise ConfigError(
            f"{where}.speed", "belongs to a recording", "give generated.pace_ms instead"
        )
    return Model(
        recorded=recorded,
        speed=_value(f"{where}.speed", table.get("speed"), Speed | None),
        generated=_convert(f"{where}.generated", table.get("generated", {}), Generated),
        fault=_fault(f"{where}.fault", table["fault"]) if "fault" in table else None,
    )


def _fault(where: str, value: object) -> Fault:
    table = dict(_table(where, value))
    kind = table.pop("kind", None)
    if not isinstance(kind, str) or kind not in FAULTS:
        problem = "is missing" if kind is None else "is not known"
        raise ConfigError(f"{where}.kind", problem, _suggestion(str(kind), FAULTS))
    return _convert(where, table, FAULTS[kind])


# --------------------------------------------------------------------------- values


def _convert(where: str, value: object, kind: type[_T], *, strict: bool = True) -> _T:
    """A flat table as a struct."""
    table = _table(where, value)
    _known(where, table, kind.__struct_fields__)  # type: ignore[attr-defined]
    return cast(_T, _value(where, table, kind, strict=strict))


def _value(where: str, value: object, kind: Any, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        # "Expected `int` >= 1 - at `$.length`": the path belongs to the place.
        problem, _, path = str(error).partition(" - at `$")
        mend = problem[:1].lower() + problem[1:]
        raise ConfigError(where + path.rstrip("`"), "can't be used", mend) from error


def _table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(where, "is no table", "write {key = value}")
    return value


def _known(where: str, table: Mapping[str, object], allowed: Iterable[str]) -> None:
    for key in table:
        if key not in allowed:
            field = f"{where}.{key}" if where else key
            raise ConfigError(field, "is no key here", _suggestion(key, allowed))


def _suggestion(word: str, allowed: Iterable[str]) -> str:
    names = list(allowed)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "use one of " + ", ".join(names) if names else "nothing may stand here"
