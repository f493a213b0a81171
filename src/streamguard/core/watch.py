"""Watch: entries in, verdicts out.

The heart of streamguard, and all of it that offline replay and object adapters need. It knows
which entries count, keeps a tally per choice, and asks the policy's rules. It never sees a byte,
a clock or a socket, and each choice gets at most one verdict, ever.
"""

from __future__ import annotations

import math
from typing import Final

from streamguard.core.events import ChoiceDelta, ChoiceReport, Chunk, Entry, Reason, Verdict
from streamguard.core.rules import Decision, Evaluation
from streamguard.core.specs import Policy

MAX_CHOICES: Final = 256
"""OpenAI takes n up to 128. A server that invents more choices is not believed: they are passed
on unwatched, so that the state of a stream stays bounded."""
MAX_LOGPROB: Final = 1e-6
"""Rounding may lift a sure token a little above 0; anything higher is no log-probability."""
MAX_FINISH_REASON: Final = 64
"""Characters of a finish reason that go into the record; the longest known one has 28."""
MAX_BARE_ZEROS: Final = 4096
"""Zeros without alternatives that wait for a credible entry; later ones never count."""


class _Tally:
    """What is known about one choice."""

    __slots__ = (
        "bare_zeros",
        "credible",
        "cut",
        "entries",
        "evaluation",
        "finish_reason",
        "lowest",
        "scorable",
        "silent_events",
        "total",
        "verdict",
    )

    def __init__(self, evaluation: Evaluation | None) -> None:
        self.evaluation = evaluation
        self.entries = 0
        self.scorable = 0
        self.total = 0.0  # sum of scorable logprobs, natural log
        self.lowest = math.inf
        # Where nobody knows whether alternatives were asked for, a 0.0 without any may be a sure
        # token or a server's word for "unknown". Such entries wait, and count once the choice has
        # shown one that can't be a placeholder; a stream of nothing else stays unscored.
        self.bare_zeros: list[tuple[Entry, int]] = []
        self.credible = False
        self.silent_events = 0
        self.finish_reason: str | None = None
        self.verdict: Verdict | None = None
        self.cut = False


class Watch:
    """Judges the choices of one answer.

    Args:
        policy: the rules, and what to do where evidence fails.
        asked: alternatives per token that were asked for; None if that is unknown.
        choices: how many choices will come; None if that is unknown.
        also: further signals to compute, for the report.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        asked: int | None,
        choices: int | None,
        also: tuple[str, ...] = (),
    ) -> None:
        self._policy = policy
        self._asked = asked
        self._expected = choices
        self._also = also
        self._floor = policy.sentinel_floor
        self._no_signal_closed = policy.fail.no_signal == "closed" and policy.rule is not None
        self._tallies: dict[int, _Tally] = {}
        self._last = math.inf if policy.rule is None else policy.rule.last_look
        self.rule_errors = 0

    # ------------------------------------------------------------------ the two verbs

    def see(self, chunk: Chunk) -> list[Verdict]:
        """Take one event's evidence and return the verdicts that fell, at most one per choice.

        Entries are read before the finish reason: on several servers the last token's entry and
        the finish ride on one event.
        """
        verdicts: list[Verdict] = []
        for delta in chunk.choices:
            tally = self._tally(delta.index)
            if tally is None:
                continue
            judged = tally.verdict is not None
            self._take(tally, delta)
            if delta.finish_reason and tally.finish_reason is None:
                tally.finish_reason = delta.finish_reason[:MAX_FINISH_REASON]
                self._close(tally, delta.index)
            if not judged and tally.verdict is not None:
                verdicts.append(tally.verdict)
        return verdicts

    def end(self) -> list[Verdict]:
        """The answer is over: choices without a finish get their last look too. Idempotent."""
        verdicts: list[Verdict] = []
        for index, tally in self._tallies.items():
            if tally.verdict is None and tally.finish_reason is None:
                verdicts += self._close(tally, index)
        return verdicts

    # ------------------------------------------------------------------ what is known

    @property
    def settled(self) -> bool:
        """Every choice that will come has its verdict, and it is `commit`."""
        return (
            self._expected is not None
            and len(self._tallies) >= self._expected
            and all(t.verdict is not None and t.verdict.kind == "commit" for t in self._live())
        )

    @property
    def entries(self) -> int:
        """Entries read, over all choices."""
        return sum(tally.entries for tally in self._tallies.values())

    @property
    def scorable(self) -> int:
        """Those among them that counted."""
        return sum(tally.scorable for tally in self._tallies.values())

    @property
    def finished(self) -> frozenset[int]:
        """Choices whose finish reason came."""
        return frozenset(i for i, t in self._tallies.items() if t.finish_reason is not None)

    @property
    def seen(self) -> frozenset[int]:
        """Choices that have appeared."""
        return frozenset(self._tallies)

    def mark_cut(self, index: int) -> None:
        """The generation of this choice was stopped, or its text withheld."""
        self._tallies[index].cut = True

    def note(self, index: int, finish_reason: str | None) -> None:
        """A choice, and perhaps its finish, seen where entries are no longer read."""
        tally = self._tally(index)
        if tally is not None and tally.finish_reason is None and finish_reason:
            tally.finish_reason = finish_reason[:MAX_FINISH_REASON]

    def condemn(self, reason: Reason) -> list[Verdict]:
        """The stream can't be read on: a verdict for every choice that has not finished.

        A verdict already given stands in the record.
        """
        verdicts: list[Verdict] = []
        if not self._tallies:
            self._tally(0)
        for index, tally in self._tallies.items():
            if tally.finish_reason is None:
                verdict = Verdict(index, "abort", tally.entries, reason)
                tally.verdict = tally.verdict or verdict
                verdicts.append(verdict)
        return verdicts

    def reports(self) -> list[ChoiceReport]:
        """One report per choice, by index."""
        return [self._report(index, self._tallies[index]) for index in sorted(self._tallies)]

    # ------------------------------------------------------------------ inside

    def _live(self) -> list[_Tally]:
        return [tally for tally in self._tallies.values() if not tally.cut]

    def _tally(self, index: int) -> _Tally | None:
        tally = self._tallies.get(index)
        if tally is None and len(self._tallies) < MAX_CHOICES:
            rule = self._policy.rule
            evaluation = None
            if rule is not None or self._also:
                evaluation = Evaluation(rule, asked=self._asked, also=self._also, floor=self._floor)
            tally = self._tallies[index] = _Tally(evaluation)
        return tally

    def _take(self, tally: _Tally, delta: ChoiceDelta) -> None:
        for entry in delta.entries:
            tally.entries += 1
            logprob = entry.logprob
            if logprob is None or not self._floor < logprob <= MAX_LOGPROB:
                continue
            if logprob == 0.0 and not entry.top_logprobs:
                if self._asked is None:
                    if not tally.credible:
                        # Nobody knows yet whether this server means it (see `bare_zeros`).
                        if len(tally.bare_zeros) < MAX_BARE_ZEROS:
                            tally.bare_zeros.append((entry, tally.entries))
                        continue
                elif self._asked > 0:
                    continue  # a placeholder: alternatives were asked for, none are listed
            elif not tally.credible:
                tally.credible = True
                for held, position in tally.bare_zeros:
                    self._score(tally, delta.index, held, position)
                tally.bare_zeros.clear()
            self._score(tally, delta.index, entry, tally.entries)
        if self._no_signal_closed and tally.verdict is None and not tally.scorable:
            tally.silent_events += bool(delta.entries or delta.has_text)
            if max(tally.silent_events, tally.entries) >= self._last:
                tally.verdict = Verdict(delta.index, "abort", tally.entries, "no_signal")

    def _score(self, tally: _Tally, index: int, entry: Entry, position: int) -> None:
        logprob = entry.logprob
        assert logprob is not None  # only scorable entries come here
        tally.scorable += 1
        tally.total += logprob
        if logprob < tally.lowest:
            tally.lowest = logprob
        if tally.evaluation is None:
            return
        try:
            decision = tally.evaluation.push(entry, position)
        except Exception:  # a rule may be anybody's code; what it raises must not end a stream
            self._contain(tally, index)
            return
        if decision is not None and tally.verdict is None:
            tally.verdict = _verdict(index, decision)

    def _close(self, tally: _Tally, index: int) -> list[Verdict]:
        """The choice ended: an answer shorter than the rule's place is looked at now."""
        if tally.verdict is not None or tally.evaluation is None:
            return []
        try:
            decision = tally.evaluation.end(tally.entries)
        except Exception:
            self._contain(tally, index)
        else:
            if decision is not None:
                tally.verdict = _verdict(index, decision)
            elif self._no_signal_closed and not tally.scorable:
                tally.verdict = Verdict(index, "abort", tally.entries, "no_signal")
        return [] if tally.verdict is None else [tally.verdict]

    def _contain(self, tally: _Tally, index: int) -> None:
        self.rule_errors += 1
        tally.evaluation = None
        if self._policy.fail.rule_error == "closed" and tally.verdict is None:
            tally.verdict = Verdict(index, "abort", tally.entries, "rule_error")

    def _report(self, index: int, tally: _Tally) -> ChoiceReport:
        verdict = tally.verdict
        no_evidence = verdict is None and self._policy.rule is not None and not tally.scorable
        return ChoiceReport(
            index=index,
            entries=tally.entries,
            scorable=tally.scorable,
            unscorable=tally.entries - tally.scorable,
            mean_logprob=tally.total / tally.scorable if tally.scorable else None,
            min_logprob=tally.lowest if tally.scorable else None,
            signals=tally.evaluation.signals() if tally.evaluation is not None else {},
            verdict=verdict.kind if verdict else None,
            position=verdict.position if verdict else None,
            reason=verdict.reason if verdict else "no_signal" if no_evidence else None,
            signal=verdict.signal if verdict else None,
            score=verdict.score if verdict else None,
            threshold=verdict.threshold if verdict else None,
            cut=tally.cut,
            finish_reason=tally.finish_reason,
        )


def _verdict(index: int, decision: Decision) -> Verdict:
    return Verdict(
        index,
        decision.kind,
        decision.position,
        "unsure" if decision.kind == "abort" else None,
        decision.signal,
        decision.score,
        decision.threshold,
    )
