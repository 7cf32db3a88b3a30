"""What a night measures, in which order, and how long it may take. Pure.

**Repeats are processes.** A scenario has ``--repeats`` of its own, but they would be neighbours
of one process: two runs of the suite could not take turns, a crash would lose them all, and what
differs from one start of the client to the next would be the same in each. Here repeat 1 of every
run is measured, then repeat 2 of every run, so that a slow quarter of an hour touches one repeat
of each and not all repeats of one. The order of the backends turns with every repeat, and so
does the seed; the same repeat of another night has the same seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as changed

from harness.nightly.gate_types import GateLimits
from harness.nightly.metrics import METRICS
from harness.nightly.suite import SCENARIOS, Gated, Run, Suite
from harness.plan.estimate import about
from harness.records import CellKey, Loop

#: of one cell and of one process around it, while nothing is known of them
_CELL_S, _PROCESS_S, _START_S = 12.0, 6.0, 60.0


@dataclass(frozen=True)
class Repeat:
    """One process of the load; ``number`` counts from 0."""

    run: Run
    number: int

    @property
    def backends(self) -> tuple[str, ...]:
        """Those of the run; in odd repeats the last one first."""
        names = self.run.backends
        return names if self.number % 2 == 0 else names[::-1]

    @property
    def label(self) -> str:
        """For people: ``short, repeat 2 of 5``."""
        return f"{self.run.name}, repeat {self.number + 1} of {self.run.repeats}"


@dataclass(frozen=True)
class Group:
    """Runs that one stack serves: they have the model and the KV budget in common."""

    model: str
    kv_budget: str | None
    runs: tuple[Run, ...]

    @property
    def backends(self) -> tuple[str, ...]:
        """All that the runs need, in the order in which they name them."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.backends))

    @property
    def repeats(self) -> tuple[Repeat, ...]:
        """Round by round: the first repeat of every run, then the second."""
        most = max(run.repeats for run in self.runs)
        rounds = [(run, i) for i in range(most) for run in self.runs if i < run.repeats]
        return tuple(Repeat(run, number) for run, number in rounds)


def with_repeats(suite: Suite, repeats: int | None) -> Suite:
    """The suite with every run repeated so often; as it is for None."""
    if repeats is None:
        return suite
    return changed(suite, run=tuple(changed(run, repeats=repeats) for run in suite.run))


def groups(suite: Suite) -> tuple[Group, ...]:
    """One for each stack, in the order in which the suite first asks for it."""
    found: dict[tuple[str, int | None], Group] = {}
    for run in suite.run:
        key = run.model, run.kv_budget_bytes
        known = found.get(key)
        if known is None:
            found[key] = Group(run.model, run.kv_budget, (run,))
        else:
            found[key] = replace(known, runs=(*known.runs, run))
    return tuple(found.values())


def source(run: str, backend: str) -> str:
    """The name of a backend in one run: two runs of other budgets are two histories."""
    return f"{run}/{backend}"


def cell_name(run: str, label: str) -> str:
    """The name of a cell in the history: ``short: paged 128+64 c4``."""
    return f"{run}: {label}"


def primary_cell(item: Gated, suite: Suite) -> str:
    """The cell of a gated series, whether it was measured or not."""
    run = next(run for run in suite.run if run.name == item.run)
    if item.level is None:
        return cell_name(run.name, f"{item.backend} {run.prompt_tokens}+{run.output_tokens}")
    key = CellKey(item.backend, "", run.prompt_tokens, run.output_tokens, item.level)
    loop: Loop = "open" if run.scenario == "open_loop" else "closed"
    return cell_name(run.name, key.label_in(loop))


def load_command(
    repeat: Repeat, urls: Mapping[str, str], python: str, scenarios: Path, results: Path
) -> list[str]:
    """The command line of one repeat; the servers are scraped by the load itself."""
    run = repeat.run
    return [
        *(python, "-m", "locust", "-f", str(scenarios / f"{run.scenario}.py")),
        *("--headless", "--only-summary"),
        *("--backends", ",".join(f"{name}={urls[name]}" for name in repeat.backends)),
        *(f"--{SCENARIOS[run.scenario]}", ",".join(str(level) for level in run.levels)),
        *("--prompt-tokens", str(run.prompt_tokens), "--output-tokens", str(run.output_tokens)),
        *("--seed", str(repeat.number), "--results-dir", str(results)),
        *("--prometheus-url", "none"),
        *(text for name, value in run.options.items() for text in (f"--{name}", value)),
    ]


def guessed_s(repeat: Repeat, known: Mapping[str, float]) -> float:
    """Seconds of one repeat: as the last night took, else a guess."""
    run = repeat.run
    return known.get(run.name, _PROCESS_S + _CELL_S * len(run.levels) * len(run.backends))


def plan_lines(suite: Suite, known: Mapping[str, float], *, starts: bool) -> Iterator[str]:
    """The night before it is begun; ``starts`` when it starts servers of its own."""
    limits: GateLimits = suite.limits
    parts = groups(suite)
    total_s = sum(guessed_s(item, known) for group in parts for item in group.repeats)
    total_s += _START_S * len(parts) if starts else 0.0
    yield f"suite {suite.suite}: about {about(total_s)}" + ("" if known else " (a guess)")
    for group in parts:
        budget = f", KV budget {group.kv_budget}" if group.kv_budget else ""
        doing = "start" if starts else "use"
        how = ", with docker compose" if starts and suite.compose is not None else ""
        yield f"{doing} {' and '.join(group.backends)} with the model {group.model}{budget}{how}"
        for run in group.runs:
            levels = ", ".join(str(level) for level in run.levels)
            yield (
                f"  {run.name}: {run.scenario}, {run.prompt_tokens}+{run.output_tokens} tokens, "
                f"levels {levels}, {' and '.join(run.backends)}, {run.repeats} repeats"
            )
        order = " ".join(f"{item.run.name}-{item.number + 1}" for item in group.repeats)
        yield f"  order: {order}"
    gated = {item.run for item in suite.gate.primary if not METRICS[item.metric].once_a_run}
    for run in suite.run:
        if run.name in gated and run.repeats < limits.min_repeats:
            few = f"fewer than {limits.min_repeats} give no verdict"
            yield f"note: {run.name} is repeated {run.repeats} times, and {few}"
    rate = f"{limits.false_alarm_rate:.1%}"
    yield f"gated, at most {rate} of nights with a false alarm over all of them:"
    for item in suite.gate.primary:
        yield f"  {item.metric} of {primary_cell(item, suite)}"
