"""``scenarios/nightly.toml``: what a night measures and what it is judged by, checked whole.

Unknown keys are errors that name the right ones; nothing is started here.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace as changed

from harness.errors import OptionError, UsageError, printable, shortened
from harness.nightly.gate_types import GateLimits
from harness.nightly.metrics import METRICS
from harness.nightly.suite_words import explained
from harness.sizes import parse_size

# not ``$``, which also matches before a last line break
_NAME, _OPTION = r"^[\w.-]+\Z", r"^[a-z][a-z0-9-]*\Z"
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=60, pattern=_NAME)]
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
OptionName = Annotated[str, msgspec.Meta(pattern=_OPTION, max_length=60)]
Level = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_AT_LEAST_ONE = msgspec.Meta(min_length=1)
_MOST_BYTES = 2**20
#: scenarios with one cell per backend and level, and how they spell their levels
SCENARIOS = {"concurrency": "levels", "open_loop": "request-rate"}
#: options of a load that the job itself gives
GIVEN = frozenset(
    {
        *("backends", "prompt-tokens", "output-tokens", "results-dir", "seed", "repeats"),
        *("prometheus-url", "api-key", *SCENARIOS.values()),
    }
)


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One load run of the night, repeated; ``kv_budget`` is a size such as ``16MiB``.

    ``options`` are further ones of the scenario, such as ``{min-requests = "60"}``.
    """

    name: Name
    scenario: Name
    backends: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    model: Annotated[str, msgspec.Meta(min_length=1)]
    levels: Annotated[tuple[Level, ...], msgspec.Meta(min_length=1)]
    prompt_tokens: Count
    output_tokens: Count
    repeats: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    kv_budget: str | None = None
    options: dict[OptionName, str] = {}

    @property
    def kv_budget_bytes(self) -> int | None:
        """What is asked of each server; None leaves its default."""
        return None if self.kv_budget is None else parse_size(self.kv_budget, "kv_budget")


class Gated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A primary series: it alone can fail the night. Without a level: a figure of the run."""

    run: Name
    backend: Name
    metric: str
    level: Level | None = None


class Gates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the night is judged; see ``harness.nightly.gate_types.GateLimits``."""

    primary: tuple[Gated, ...]
    false_alarm_rate: Annotated[float, msgspec.Meta(gt=0.0, le=0.2)] = 0.01
    baseline_nights: Annotated[int, msgspec.Meta(ge=3, le=1000)] = 90
    min_nights: Annotated[int, msgspec.Meta(ge=3, le=1000)] = 5
    max_gated: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8


class Keep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Old run directories are pruned by age and by count; the history keeps their figures."""

    days: Count = 90
    runs: Count = 200


class Compose(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The servers are started with ``docker compose``, from these files in this order.

    In the file they are named as seen from the suite's folder; once read, they are absolute.
    """

    files: Annotated[tuple[Annotated[str, msgspec.Meta(min_length=1)], ...], _AT_LEAST_ONE]


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    suite: Name
    run: Annotated[tuple[Run, ...], msgspec.Meta(min_length=1)]
    gate: Gates
    keep: Keep = Keep()
    compose: Compose | None = None

    @property
    def limits(self) -> GateLimits:
        """The gate's limits as the suite asks for them."""
        return GateLimits(
            baseline_nights=self.gate.baseline_nights,
            min_nights=self.gate.min_nights,
            max_gated=self.gate.max_gated,
            false_alarm_rate=self.gate.false_alarm_rate,
        )


_TABLES: dict[str, type[msgspec.Struct]] = {
    **{"": Suite, ".run[]": Run, ".gate": Gates, ".gate.primary[]": Gated, ".keep": Keep},
    ".compose": Compose,
}
_PATTERNS = {
    _NAME: "letters, digits, '_', '.' and '-' alone",
    _OPTION: "the name of an option without its dashes",
}


def read_suite(path: Path) -> Suite:
    """Read and check a suite; raises UsageError that says what is wrong and where."""
    where = printable(str(path))
    try:
        suite = msgspec.convert(_raw(path), Suite)
    except OSError as error:
        raise UsageError(
            f"{where}: cannot be read ({error.strerror}); name a suite file"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: no UTF-8 at byte {error.start}; save it as UTF-8") from error
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deep; no suite needs more than three") from error
    except (ValueError, msgspec.ValidationError) as error:
        # TOML that is wrong, an integer of thousands of digits, what the suite does not allow
        said = explained(str(error), _TABLES, _PATTERNS)
        raise UsageError(f"{where}: {shortened(printable(said), 400)}") from error
    if suite.compose is not None:
        suite = changed(suite, compose=_found(suite.compose, path.absolute().parent))
    for problem in _problems(suite):
        raise UsageError(f"{where}: {shortened(printable(problem), 600)}")
    return suite


def _raw(path: Path) -> dict[str, Any]:
    # a pipe would be waited for, and a device may never end
    if path.exists() and not path.is_file():
        raise OSError(0, "no file")
    content = path.read_bytes()
    if len(content) > _MOST_BYTES:
        raise OSError(0, f"larger than {_MOST_BYTES} bytes")
    return tomllib.loads(content.decode("utf-8-sig"))


def _found(compose: Compose, folder: Path) -> Compose:
    return Compose(tuple(str(folder / name) for name in compose.files))


def _problems(suite: Suite) -> list[str]:
    names = [run.name for run in suite.run]
    found = [f"run {name} stands twice" for name in sorted(set(names)) if names.count(name) > 1]
    found += [text for run in suite.run for text in _wrong(run)]
    found += _wrong_compose(suite)
    gates = suite.gate
    if not gates.primary:
        found.append("gate.primary is empty, so no night could ever fail; name a series")
    if len(gates.primary) > gates.max_gated:
        found.append(
            f"{len(gates.primary)} primary series; at most {gates.max_gated} are gated (max_gated)"
        )
    if gates.min_nights > gates.baseline_nights:
        found.append("gate.min_nights is larger than gate.baseline_nights")
    if len(set(gates.primary)) < len(gates.primary):
        found.append("a primary series stands twice")
    runs = {run.name: run for run in suite.run}
    return found + [text for item in gates.primary for text in _unknown(item, runs)]


def _wrong_compose(suite: Suite) -> list[str]:
    if suite.compose is None:
        return []
    found = [f"compose.files: {n} is no file" for n in suite.compose.files if not Path(n).is_file()]
    rule = "with [compose] it is tiny, smollm2, a hub id or a folder's name in MODELS"
    return found + [
        f"run {run.name}: model {shortened(run.model)}: {rule}"
        for run in suite.run
        if run.model.startswith((".", "/", "~"))
    ]


def _wrong(run: Run) -> list[str]:
    found = []
    if run.scenario not in SCENARIOS:
        found.append(
            f"run {run.name}: no scenario {run.scenario} for a night; "
            f"expected one of {', '.join(SCENARIOS)}"
        )
    for name, text in (("model", run.model), *run.options.items()):
        if not text.isprintable():
            found.append(f"run {run.name}: {name} {shortened(repr(text))} has control characters")
    if not run.model.strip():
        found.append(f"run {run.name}: model is empty; expected tiny, a folder or a hub id")
    for problem, values in (("backend", run.backends), ("level", run.levels)):
        if len(set(values)) < len(values):
            found.append(f"run {run.name}: a {problem} stands twice")
    given = sorted(GIVEN & set(run.options))
    if given:
        found.append(f"run {run.name}: options {', '.join(given)} are the job's own")
    if run.kv_budget is not None:
        try:
            parse_size(run.kv_budget, f"run {run.name}: kv_budget")
        except OptionError as error:
            found.append(str(error))
    return found


def _unknown(item: Gated, runs: dict[str, Run]) -> list[str]:
    where = f"gate.primary {item.metric} of {item.backend} in {item.run}"
    run = runs.get(item.run)
    if run is None:
        return [f"{where}: no such run; expected one of {', '.join(runs)}"]
    if item.metric not in METRICS:
        return [f"{where}: no such metric; expected one of {', '.join(METRICS)}"]
    if item.backend not in run.backends:
        return [f"{where}: no such backend; expected one of {', '.join(run.backends)}"]
    if METRICS[item.metric].once_a_run:
        return [f"{where}: it has no level"] if item.level is not None else []
    if item.level not in run.levels:
        return [f"{where}: level {item.level}; expected one of {', '.join(map(str, run.levels))}"]
    return []
