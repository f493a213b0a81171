"""A policy file: TOML in, a `Policy` out.

One form, nothing implied: unknown keys are refused, so that a typing mistake can't switch a guard
off. Every complaint names the file, the key path, and what may stand there. The values themselves
are checked by the specs (`core.specs`), the same way as for flags and for Python.

    name = "answers"
    mode = "enforce"
    combine = "any"            # "any" (default), "all", or {at_least = 2}
    fail = "open"              # or a [fail] table, cause by cause

    [[rules]]
    signal = "mean_prob"
    below = 0.5
    from = 4
    first = 12
    skip = ["blank"]

    [[rules]]                  # a group stands where a rule may stand
    all = [
        {signal = "min_prob", below = 0.05, first = 12},
        {signal = "margin", below = 0.1, first = 12},
    ]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from streamguard.core import checks
from streamguard.core.specs import AllOf, AnyOf, FailPolicy, Policy, Quorum, Rule, Spec
from streamguard.errors import ConfigError

MAX_DEPTH: Final = 16
"""Groups inside groups: more is a mistake, and recursion ends somewhere."""

_RULE_KEYS: Final = tuple("from" if f == "start" else f for f in Rule.__struct_fields__)
_PLAIN_KEYS: Final = tuple(f for f in Policy.__struct_fields__ if f not in ("rule", "fail"))
_TOP_KEYS: Final = (*_PLAIN_KEYS, "fail", "combine", "rules")
_GROUP_KEYS: Final = ("any", "all", "at_least", "of")


def load_policy(path: Path) -> Policy:
    """Read a policy file.

    Args:
        path: the TOML file.

    Raises:
        ConfigError: it can't be read, is no TOML, or says something that can't be meant.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(str(path), reason, "name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "is not UTF-8", "save it as UTF-8") from error
    return parse_policy(text, name=str(path))


def parse_policy(text: str, *, name: str = "policy") -> Policy:
    """Read a policy from TOML text; `name` is what complaints call it.

    Raises:
        ConfigError: as `load_policy`.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(name, f"is not valid TOML: {error}", "mend it there") from error
    except RecursionError as error:
        raise ConfigError(name, "is nested too deeply", "use fewer levels") from error
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(name, "holds a number beyond all sense", "mend it there") from error
    try:
        return _policy(table)
    except ConfigError as error:
        raise error.at(f"{name}: {error.field}") from error


def _policy(table: dict[str, Any]) -> Policy:
    _known("", table, _TOP_KEYS)
    fields: dict[str, Any] = {key: table[key] for key in _PLAIN_KEYS if key in table}
    if "fail" in table:
        fields["fail"] = _fail(table["fail"])
    if "rules" in table:
        fields["rule"] = _combined(table.get("combine", "any"), table["rules"])
    elif "combine" in table:
        raise ConfigError("combine", "has no rules to combine", "add [[rules]]")
    return Policy(**fields)


def _fail(value: object) -> FailPolicy:
    if isinstance(value, dict):
        _known("fail", value, FailPolicy.__struct_fields__)
        try:
            return FailPolicy(**value)
        except ConfigError as error:
            raise error.at(f"fail.{error.field}") from error
    checks.word("fail", value, ("open", "closed"))
    return FailPolicy.all("closed" if value == "closed" else "open")


def _combined(combine: object, items: object) -> Spec:
    rules = _rules("rules", items, depth=1)
    if isinstance(combine, dict):
        _known("combine", combine, ("at_least",))
        if "at_least" not in combine:
            raise ConfigError("combine", "is empty", "write {at_least = 2}")
        return _quorum("combine.at_least", combine["at_least"], rules)
    # A lone rule needs no group around it, whatever it is combined by.
    word = checks.word("combine", combine, ("any", "all"))
    if len(rules) == 1:
        return rules[0]
    return AnyOf(rules) if word == "any" else AllOf(rules)


def _rules(where: str, items: object, *, depth: int) -> tuple[Spec, ...]:
    if not isinstance(items, list) or not items:
        raise ConfigError(where, "is not a list of rules", "give at least one [[rules]] table")
    if depth > MAX_DEPTH:
        raise ConfigError(where, "is nested too deeply", f"use at most {MAX_DEPTH} levels")
    return tuple(_item(f"{where}[{i}]", item, depth=depth) for i, item in enumerate(items))


def _item(where: str, item: object, *, depth: int) -> Spec:
    if not isinstance(item, dict):
        raise ConfigError(where, "is not a table", "write {signal = ..., below = ..., first = ...}")
    if not any(key in item for key in _GROUP_KEYS):
        return _rule(where, item)
    match sorted(item):
        case ["any"]:
            return AnyOf(_rules(f"{where}.any", item["any"], depth=depth + 1))
        case ["all"]:
            return AllOf(_rules(f"{where}.all", item["all"], depth=depth + 1))
        case ["at_least", "of"]:
            members = _rules(f"{where}.of", item["of"], depth=depth + 1)
            return _quorum(f"{where}.at_least", item["at_least"], members)
        case _:
            raise ConfigError(
                where,
                "mixes keys that don't go together: " + ", ".join(sorted(item)),
                "write {any = [...]}, {all = [...]} or {at_least = 2, of = [...]}",
            )


def _quorum(where: str, at_least: Any, rules: tuple[Spec, ...]) -> Quorum:
    try:
        return Quorum(at_least, rules)
    except ConfigError as error:
        raise error.at(where) from error


def _rule(where: str, table: dict[str, Any]) -> Rule:
    _known(where, table, _RULE_KEYS)
    for key in ("signal", "below", "first"):
        if key not in table:
            raise ConfigError(f"{where}.{key}", "is missing", "a rule has signal, below and first")
    try:
        return Rule(**{"start" if key == "from" else key: table[key] for key in table})
    except ConfigError as error:
        key = "from" if error.field == "start" else error.field
        raise error.at(f"{where}.{key}") from error


def _known(where: str, table: dict[str, Any], allowed: Iterable[str]) -> None:
    for key in table:
        if key not in allowed:
            field = f"{where}.{key}" if where else key
            raise ConfigError(field, "is no key here", checks.suggestion(key, allowed))
