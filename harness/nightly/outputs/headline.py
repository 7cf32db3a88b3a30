"""The verdict of a whole night in one line, and what to do where there is none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.kv.units import counted
from harness.nightly.night_types import Judged, Night, NightEvent
from harness.nightly.outputs.sections import alarms, gated
from harness.nightly.outputs.words import UNJUDGED, cell_text, metric_text, moved_text

#: Exit code -> the first word.
OUTCOMES = {0: "OK", 1: "REGRESSED", 2: "NO VERDICT", 3: "FAILED"}
#: Events that say why a night has no verdict or failed; the last one counts.
_CAUSES = ("preflight", "run failed", "cell failed", "interrupted")
_REMEDIES = {
    "insufficient samples": "see the events and the run's own report, or give the run more "
    "repeats or requests",
    "unstable": "see what else ran on the machine, or measure this figure with more repeats",
}


@dataclass(frozen=True)
class Headline:
    """The verdict of the whole night: one of ``OUTCOMES`` and a sentence."""

    word: str
    text: str

    @property
    def line(self) -> str:
        """Both."""
        return f"{self.word}: {self.text}"


def headline(night: Night) -> Headline:
    """What became worse, by how much, how sure, since when; or ok; or why there is no verdict."""
    word = OUTCOMES.get(night.exit_code, "FAILED")
    if word == "REGRESSED":
        return Headline(word, _regressed(night))
    if word == "NO VERDICT":
        return Headline(word, _no_verdict(night))
    if word == "FAILED":
        why = _cause(night.events)
        return Headline(word, f"the job itself failed: {why}" if why else "the job itself failed")
    return Headline(word, _fine(night))


def _regressed(night: Night) -> str:
    found = alarms(night)
    if not found:
        return "a gated figure became worse"
    more = f"; and {len(found) - 1} more, below" if len(found) > 1 else ""
    return moved_text(found[0]) + more


def _fine(night: Night) -> str:
    items = gated(night)
    if not items:
        return "no figure is gated"
    silent = sum(item.verdict.name in UNJUDGED for item in items)
    text = f"none of {counted(len(items), 'gated figure')} became worse"
    return f"{text}, {silent} of them without a verdict" if silent else text


def _no_verdict(night: Night) -> str:
    items = gated(night)
    silent = [item for item in items if item.verdict.name in UNJUDGED]
    if not silent:
        return _cause(night.events) or "no gated figure was measured; see the events"
    parts = [_silent_text(night, silent, name) for name in UNJUDGED]
    text = f"{len(silent)} of {counted(len(items), 'gated figure')} cannot be judged: "
    return text + "; ".join(part for part in parts if part)


def _silent_text(night: Night, silent: Sequence[Judged], name: str) -> str:
    items = [item for item in silent if item.verdict.name == name]
    if not items:
        return ""
    if name == "no comparable baseline":
        # the one that waits longest
        last = min(items, key=lambda item: item.verdict.nights)
        return f"{name} ({last.verdict.reason}; {_nights_to_go(night, last)})"
    first = f"{cell_text(items[0])} {metric_text(items[0].series.metric)}"
    others = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return f"{name} ({first}{others}: {items[0].verdict.reason}; {_REMEDIES[name]})"


def _nights_to_go(night: Night, item: Judged) -> str:
    """Tonight is one of them: with 3 of 5 nights one more is needed before the next is judged."""
    to_go = night.limits.min_nights - item.verdict.nights - 1
    if to_go < 1:
        return "with tonight there are enough, the next one is judged"
    verb = "is" if to_go == 1 else "are"
    return f"{counted(to_go, 'more night')} {verb} needed"


def _cause(events: Sequence[NightEvent]) -> str:
    causes = [event for event in events if event.kind in _CAUSES]
    return f"{causes[-1].kind}: {causes[-1].text}" if causes else ""
