"""Rules: a spec followed through one choice, to at most one decision.

An `Evaluation` sees entries, never bytes, time or chunk borders, so the decision depends on
nothing else. The specs it follows are written in `core.specs`; their names are exported here as
well, since whoever evaluates a rule has one.

Monotone: lowering one scorable logprob never turns an abort into a pass (for the five plain
signals). When a rule looks, and when it gives up, depends on counts alone; a lower value can only
make more looks low; and a tree counts rules that fired, never rules that did not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, assert_never

import msgspec

from streamguard.core import skips
from streamguard.core.alternatives import SENTINEL_FLOOR
from streamguard.core.events import Entry, VerdictKind
from streamguard.core.signals import DEFAULT_K, Signal, make
from streamguard.core.specs import AllOf, AnyOf, FailPolicy, Policy, Quorum, Rule, Skip, Spec

__all__ = [
    "AllOf",
    "AnyOf",
    "Decision",
    "Evaluation",
    "FailPolicy",
    "Policy",
    "Quorum",
    "Rule",
    "Skip",
    "Spec",
]


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What the rules decided, once.

    Attributes:
        kind: `commit` or `abort`.
        signal, score, threshold: the look that decided; for a commit the last look of the rule
            that passed last.
        position: as given to the push or end that decided.
    """

    kind: VerdictKind
    signal: str
    score: float
    threshold: float
    position: int


_State: TypeAlias = Literal["open", "fired", "passed", "unavailable"]


class _Leaf:
    """One plain rule on its way: looks, low looks in a row, and how it settled."""

    __slots__ = ("_bound", "_low", "_value", "at", "rule", "score", "state")

    def __init__(self, rule: Rule, value: Callable[[], float | None]) -> None:
        self.rule = rule
        self.state: _State = "open"
        self.at = 0
        self.score: float | None = None
        self._value = value
        self._bound = rule.below - rule.tolerance
        self._low = 0

    def look(self, count: int, position: int) -> bool:
        """Look once, at the count-th entry in scope; whether that settled the rule."""
        score = self.score = self._value()
        if score is None or score >= self._bound:
            self._low = 0
        else:
            self._low += 1
            if self._low >= self.rule.patience:
                self.state = "fired"
                self.at = position
                return True
        if count >= self.rule.first:
            self.settle(position)
            return True
        return False

    def settle(self, position: int) -> None:
        """No more looks: it passed, or there never was anything to look at."""
        self.state = "unavailable" if self.score is None else "passed"
        self.at = position

    def outcome(self) -> tuple[_State, int, _Leaf]:
        return self.state, self.at, self


class _Group:
    """`need` of the children must fire. A fired child stays fired."""

    __slots__ = ("_children", "_need")

    def __init__(self, need: int, children: list[_Leaf | _Group]) -> None:
        self._need = need
        self._children = children

    def outcome(self) -> tuple[_State, int, _Leaf]:
        """The state, since when, and the leaf that brought it about."""
        by_state: dict[_State, list[tuple[int, _Leaf]]] = {
            "open": [], "fired": [], "passed": [], "unavailable": []
        }  # fmt: skip
        for child in self._children:
            state, at, leaf = child.outcome()
            by_state[state].append((at, leaf))
        fired, passed, still_open = by_state["fired"], by_state["passed"], by_state["open"]
        if len(fired) >= self._need:
            fired.sort(key=_when)
            return "fired", *fired[self._need - 1]
        if len(fired) + len(still_open) < self._need:
            if passed or fired:
                return "passed", *max(passed or fired, key=_when)
            if not still_open:
                return "unavailable", *by_state["unavailable"][-1]
        return "open", *still_open[0]  # there is one: fired + open >= need > fired, or none settled


def _when(settled: tuple[int, _Leaf]) -> int:
    return settled[0]


class _Scope:
    """The entries that share one set of skips: their count, signals and rules still open."""

    __slots__ = ("count", "feeds", "leaves", "next_look", "skips")

    def __init__(self, skip: tuple[Skip, ...]) -> None:
        tests = {"blank": skips.is_blank, "special": skips.is_special}
        self.skips = [tests[name] for name in skip]
        self.count = 0
        self.feeds: list[Callable[[Entry], None]] = []
        self.leaves: list[_Leaf] = []
        self.next_look = 0

    def look(self, position: int) -> bool:
        """Let every rule look whose turn it is; whether one settled."""
        count = self.count
        settled = False
        for leaf in self.leaves:
            if leaf.rule.look_from <= count and leaf.look(count, position):
                settled = True
        if settled:
            self.drop_settled()
        return settled

    def drop_settled(self) -> None:
        self.leaves = [leaf for leaf in self.leaves if leaf.state == "open"]
        self.next_look = min((leaf.rule.look_from for leaf in self.leaves), default=0)


class Evaluation:
    """One spec followed through one choice.

    Args:
        spec: what to decide; None: only feed signals.
        asked: alternatives asked for per token, None if not known.
        also: further signals to compute, over the scope of the first rule and all alternatives
            that are listed; a name that a rule computes already is not computed again.
        floor: an alternative's logprob at or below it is a sentinel.
    """

    __slots__ = ("_decided", "_named", "_root", "_scopes")

    def __init__(
        self,
        spec: Spec | None,
        *,
        asked: int | None = None,
        also: Iterable[str] = (),
        floor: float = SENTINEL_FLOOR,
    ) -> None:
        scopes: dict[tuple[Skip, ...], _Scope] = {}
        signals: dict[tuple[object, ...], Signal] = {}
        self._named: dict[str, Signal] = {}

        def named(name: str, signal: Signal) -> None:
            number, key = 1, name
            while key in self._named:
                number += 1
                key = f"{name}#{number}"
            self._named[key] = signal

        def compile_spec(node: Spec) -> _Leaf | _Group:
            match node:
                case Rule():
                    scope = scopes.setdefault(node.skip, _Scope(node.skip))
                    k = node.k or DEFAULT_K
                    key = (node.signal, node.skip, node.window, node.quantile, k)
                    if key not in signals:
                        signals[key] = signal = make(
                            node.signal,
                            window=node.window,
                            quantile=node.quantile,
                            k=k,
                            asked=asked,
                            floor=floor,
                        )
                        scope.feeds.append(signal.push)
                        named(node.signal, signal)
                    leaf = _Leaf(node, signals[key].value)
                    scope.leaves.append(leaf)
                    return leaf
                case AnyOf(rules):
                    return _Group(1, [compile_spec(rule) for rule in rules])
                case AllOf(rules):
                    return _Group(len(rules), [compile_spec(rule) for rule in rules])
                case Quorum(at_least, rules):
                    return _Group(at_least, [compile_spec(rule) for rule in rules])
                case _:
                    assert_never(node)

        self._root = None if spec is None else compile_spec(spec)
        self._decided = spec is None
        for name in also:
            if name not in self._named:
                signal = make(name, asked=asked, floor=floor)
                # The first scope made is that of the first rule.
                scope = next(iter(scopes.values())) if scopes else scopes.setdefault((), _Scope(()))
                scope.feeds.append(signal.push)
                named(name, signal)
        self._scopes = tuple(scopes.values())
        for scope in self._scopes:
            scope.drop_settled()

    def push(self, entry: Entry, position: int) -> Decision | None:
        """Take the choice's next scorable entry; every one, in order.

        Args:
            entry: the entry.
            position: its 1-based place among all entries of the choice.

        Returns:
            The decision, once; None before, and for ever after, while the signals are still fed.
        """
        settled = False
        for scope in self._scopes:
            for skipped in scope.skips:
                if skipped(entry):
                    break
            else:
                scope.count += 1
                for feed in scope.feeds:
                    feed(entry)
                if 0 < scope.next_look <= scope.count and scope.look(position):
                    settled = True
        return self._decide(position) if settled and not self._decided else None

    def end(self, position: int) -> Decision | None:
        """The choice is over: a rule that never had a look has one, then all of them settle.

        One look is one look: with more `patience` than that, it does not abort.
        """
        if self._decided:
            return None
        for scope in self._scopes:
            for leaf in scope.leaves:
                if scope.count and scope.count < leaf.rule.look_from:
                    leaf.look(scope.count, position)
                if leaf.state == "open":
                    leaf.settle(position)
            scope.drop_settled()
        decision = self._decide(position)
        self._decided = True
        return decision

    def signals(self) -> dict[str, float | None]:
        """The current values by signal name, a second one with other parameters as "name#2"."""
        return {name: signal.value() for name, signal in self._named.items()}

    def _decide(self, position: int) -> Decision | None:
        if self._root is None:
            return None
        state, _, leaf = self._root.outcome()
        match state:
            case "open" | "unavailable":
                return None
            case "fired" | "passed":
                score = leaf.score
            case _:
                assert_never(state)
        if score is None:
            return None
        self._decided = True
        for scope in self._scopes:
            scope.leaves = []
            scope.next_look = 0
        return Decision(
            kind="abort" if state == "fired" else "commit",
            signal=leaf.rule.signal,
            score=score,
            threshold=leaf.rule.below,
            position=position,
        )
