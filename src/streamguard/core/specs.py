"""Specs: what an operator writes. Frozen values that check themselves; nothing here decides.

`Rule` says what is too low and where to look, groups combine rules, a `Policy` says what follows.
Every field that can't be meant is refused at once, with the field and what to write instead.
How a spec is followed through a choice: `core.rules`, which exports these names too.
"""

from __future__ import annotations

import re
from typing import Final, Literal, Protocol, TypeAlias, get_args

import msgspec

from streamguard.core import checks
from streamguard.core.alternatives import SENTINEL_FLOOR
from streamguard.core.events import Fail, Mode, OnAbort, Refused, Release
from streamguard.core.signals import (
    QUANTILE_ENTRIES,
    SIGNALS,
    needed_alternatives,
)
from streamguard.errors import ConfigError

Skip: TypeAlias = Literal["blank", "special"]
Dead: TypeAlias = Literal["all", "any"]
Spec: TypeAlias = "Rule | AnyOf | AllOf | Quorum"

MAX_FIRST: Final = 1_000_000
MAX_WINDOW: Final = 4096
MAX_K: Final = 1000

_WINDOWED: Final = ("window_prob", "group_confidence")
_TOP_K: Final = ("entropy_confidence", "group_confidence")
_POLICY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FINISH_REASONS: Final = ("content_filter", "length", "stop")


_QUANTILE_MEND: Final = "give a number between 0 and 1, such as 0.1"


def _bound_range(signal: str) -> tuple[float, float, str]:
    match signal:
        case "margin":
            return -1.0, 1.0, "a margin lies between -1 and 1"
        case "group_confidence":
            return 0.0, -SENTINEL_FLOOR, "it is a mean of -logprob: give a number from 0 up"
        case _:
            # Above 1 it aborts everything, which is of use in a trial; 50 was meant as per cent.
            return 0.0, 2.0, f"{signal} lies between 0 and 1 (50 % is 0.5)"


# --------------------------------------------------------------------------- specs


class Rule(msgspec.Struct, frozen=True):
    """Abort when a signal is low where the rule looks.

    Attributes:
        signal: one of `SIGNALS`.
        below: the bound, in the signal's unit; a look is low if value < below - tolerance.
        first: N: the last look is at the N-th scorable entry in scope. No abort by then: it passes.
        start: M ("from" in files and flags): a look at each of M..N; None: only at N.
        patience: that many low looks in a row abort.
        tolerance: what rounding on the way may cost, in the signal's unit.
        skip: entries out of scope: neither counted nor averaged.
        window: entries per window (`window_prob`, `group_confidence`).
        quantile: `quantile_prob` only.
        k: alternatives used per entry (`entropy_confidence`, `group_confidence`); None: 5, however
            many the client asked for, because the scale depends on k.

    Raises:
        ConfigError: a field that can't be meant.
    """

    signal: str
    below: float
    first: int
    start: int | None = None
    patience: int = 1
    tolerance: float = 0.001
    skip: tuple[Skip, ...] = ()
    window: int = 8
    quantile: float = 0.1
    k: int | None = None

    def __post_init__(self) -> None:
        checks.word("signal", self.signal, SIGNALS)
        low, high, mend = _bound_range(self.signal)
        below = checks.number("below", self.below, low, high, mend)
        msgspec.structs.force_setattr(self, "below", below)
        checks.whole("first", self.first, 1, MAX_FIRST)
        if self.start is not None:
            checks.whole("start", self.start, 1, MAX_FIRST)
            if self.start > self.first:
                raise ConfigError(
                    "start", "lies behind the last look", f"give one from 1 to {self.first} (first)"
                )
        looks = self.first - self.look_from + 1
        checks.whole("patience", self.patience, 1, MAX_FIRST)
        if self.patience > looks:
            raise ConfigError(
                "patience",
                f"asks for {self.patience} low looks where there are {looks}",
                f"give at most {looks}, or an earlier start",
            )
        checks.number("tolerance", self.tolerance, 0.0, 1e6, "give a number from 0 up")
        given: object = self.skip
        if not isinstance(given, tuple | list | set | frozenset):
            raise ConfigError("skip", "is not a list", 'write ["blank", "special"]')
        words = {checks.word("skip", skip, get_args(Skip)) for skip in given}
        msgspec.structs.force_setattr(self, "skip", tuple(sorted(words)))
        self._check_parameters()

    def _check_parameters(self) -> None:
        checks.whole("window", self.window, 1, MAX_WINDOW)
        checks.number("quantile", self.quantile, 0.0, 1.0, _QUANTILE_MEND)
        if not 0.0 < self.quantile < 1.0:
            raise ConfigError("quantile", f"{self.quantile!r} is out of range", _QUANTILE_MEND)
        for name, unused in (
            ("window", self.window != 8 and self.signal not in _WINDOWED),
            ("quantile", self.quantile != 0.1 and self.signal != "quantile_prob"),
            ("k", self.k is not None and self.signal not in _TOP_K),
        ):
            if unused:
                raise ConfigError(name, f"{self.signal} does not use it", "leave it out")
        if self.k is not None:
            checks.whole("k", self.k, 2, MAX_K)
        if self.signal == "window_prob" and self.first < self.window:
            raise ConfigError(
                "first",
                f"is smaller than the window of {self.window}, so no look ever sees a full window",
                f"give at least {self.window}, or a smaller window",
            )
        if self.signal == "quantile_prob" and self.first > QUANTILE_ENTRIES:
            raise ConfigError(
                "first",
                "is more than quantile_prob keeps",
                f"give at most {QUANTILE_ENTRIES}",
            )

    @property
    def look_from(self) -> int:
        """M: the first look's place in the count."""
        return self.first if self.start is None else self.start

    @property
    def last_look(self) -> int:
        """N, under the name that groups have too."""
        return self.first

    @property
    def alternatives(self) -> int:
        """How many alternatives per token the signal needs."""
        return needed_alternatives(self.signal, self.k)


class _HasRules(Protocol):
    @property
    def rules(self) -> tuple[Spec, ...]: ...


class _Group(msgspec.Struct, frozen=True):
    """What the ways to combine rules share. The field itself is theirs: its place differs."""

    @property
    def last_look(self: _HasRules) -> int:
        """The count, skipped entries apart, at which the last of the rules has settled."""
        return max(rule.last_look for rule in self.rules)

    @property
    def alternatives(self: _HasRules) -> int:
        """How many alternatives per token the rules need together."""
        return max(rule.alternatives for rule in self.rules)


class AnyOf(_Group, frozen=True):
    """Abort when one of the rules fires; commit when all have settled and one at least passed."""

    rules: tuple[Spec, ...]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rules", _members(self.rules))


class AllOf(_Group, frozen=True):
    """Abort when all of the rules have fired; commit as soon as one passes."""

    rules: tuple[Spec, ...]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rules", _members(self.rules))


class Quorum(_Group, frozen=True):
    """Abort when `at_least` of the rules fired; commit as soon as that can't happen any more."""

    at_least: int
    rules: tuple[Spec, ...]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rules", _members(self.rules))
        checks.whole("at_least", self.at_least, 1, len(self.rules))


def _members(rules: object) -> tuple[Spec, ...]:
    if not isinstance(rules, tuple | list) or not rules:
        raise ConfigError("rules", "has no rule in it", "give a list of at least one")
    if not all(isinstance(rule, Rule | AnyOf | AllOf | Quorum) for rule in rules):
        raise ConfigError("rules", "holds something that is no rule", "give rules or groups")
    return tuple(rules)


# --------------------------------------------------------------------------- policy


class FailPolicy(msgspec.Struct, frozen=True):
    """What happens where the guard can't do its work: `open` lets pass, `closed` stops.

    Attributes:
        unparsable: an event that should carry evidence can't be read.
        no_signal: the stream ended, or the rules did, without evidence.
        encoded: the answer is compressed although identity was asked for.
        oversize: one event is larger than the limit.
        rule_error: a rule raised.
        unwatchable: nothing can be watched (no logprobs to be had); closed implies refusing.
    """

    unparsable: Fail = "open"
    no_signal: Fail = "open"
    encoded: Fail = "open"
    oversize: Fail = "open"
    rule_error: Fail = "open"
    unwatchable: Fail = "open"

    def __post_init__(self) -> None:
        for cause in self.__struct_fields__:
            checks.word(cause, getattr(self, cause), get_args(Fail))

    @classmethod
    def all(cls, fail: Fail) -> FailPolicy:
        """The same choice for every cause."""
        return cls(*(fail for _ in cls.__struct_fields__))


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A named rule and everything that is decided around it.

    Attributes:
        name: goes into headers, logs and metrics.
        mode: `observe` records only; `off` does not even watch.
        release: when events go out.
        on_abort, finish_reason: what a client sees of an abort.
        refused: what happens when the upstream refuses the logprobs fields that we added.
        fail: what happens where the guard can't do its work.
        dead: cancel upstream when `all` choices, or `any` one, are aborted.
        rule: None: nothing is ever decided.
        sentinel_floor: a logprob at or below it is a server's way to say "no number".
    """

    name: str = "default"
    mode: Mode = "enforce"
    release: Release = "stream"
    on_abort: OnAbort = "finish"
    finish_reason: str = "content_filter"
    refused: Refused = "retry"
    fail: FailPolicy = FailPolicy()
    dead: Dead = "all"
    rule: Spec | None = None
    sentinel_floor: float = SENTINEL_FLOOR

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _POLICY_NAME.fullmatch(self.name):
            raise ConfigError(
                "name",
                "can't go into a header",
                "use up to 64 letters, digits, dots, dashes and underscores",
            )
        checks.word("mode", self.mode, get_args(Mode))
        checks.word("release", self.release, get_args(Release))
        checks.word("on_abort", self.on_abort, get_args(OnAbort))
        # Never a reason that makes a client act on what was cut short (tool_calls).
        checks.word("finish_reason", self.finish_reason, _FINISH_REASONS)
        checks.word("refused", self.refused, get_args(Refused))
        checks.word("dead", self.dead, get_args(Dead))
        checks.number(
            "sentinel_floor",
            self.sentinel_floor,
            SENTINEL_FLOOR,
            -1.0,
            f"give one from {SENTINEL_FLOOR:.0f} to -1, above your server's sentinel",
        )
        if not isinstance(self.fail, FailPolicy):
            raise ConfigError("fail", "is no FailPolicy", "write FailPolicy.all('closed')")
        if self.rule is not None and not isinstance(self.rule, Rule | AnyOf | AllOf | Quorum):
            raise ConfigError("rule", "is no rule", "give a Rule, AnyOf, AllOf or Quorum")

    @property
    def alternatives(self) -> int:
        """How many alternatives per token the rules need together."""
        return 0 if self.rule is None else self.rule.alternatives
