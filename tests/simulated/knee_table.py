"""The knees that the concurrency scenario reports beside those that the models have.

    python -m tests.simulated.knee_table [FILE]

Starts a modelled server for each of the seeded configurations, runs the scenario against
them, headless as its users do, and prints a table; with FILE the rows are also written there
as JSON. Takes some ten minutes a round, on a machine that does nothing else. The exit code is 1
when a row differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from servers.simulated.expected import ExpectedKnee
from tests.scenarios.locust_process import end, started
from tests.simulated.configurations import (
    COUNT,
    LEVELS,
    OUTPUT,
    PROMPT,
    TPOT_LIMIT_S,
    TTFT_LIMIT_S,
    Configuration,
    configuration,
)
from tests.simulated.support import running, truth

#: scenarios that run at once; two would make each other late on two cores
_AT_ONCE = 1
_LIMIT_S = 1200.0
_ATTEMPTS = 3
#: a server of which more tokens than this share are later than this is not the model
_LATE_S, _LATE_SHARE = 0.005, 0.02
#: in a knee's evidence: the level gave no verdict
_NOT_JUDGED = ": not judged, "
_KNEES = ("capacity", "memory", "latency")


@dataclass(frozen=True)
class Row:
    """One configuration: for each knee the first bad level and its cause."""

    name: str
    expected: dict[str, str]
    reported: dict[str, str]
    #: what the report says about each knee that differs
    evidence: dict[str, list[str]]
    #: whether every level was judged, and the server was on time: else it was not the model
    judged: bool
    attempt: int = 1

    @property
    def same(self) -> bool:
        return self.expected == self.reported


def measure(configurations: Sequence[Configuration]) -> list[Row]:
    """Run the scenario against all of them; rows in their order.

    Where the report gives no verdict on a level because the machine kept the client from its
    work, or where the truth shows that the server itself was kept from being the model, the
    configuration is measured again, a few times at most. Whether a verdict was right has no
    part in this.
    """
    rows: dict[str, Row] = {}
    left = list(configurations)
    for attempt in range(1, _ATTEMPTS + 1):
        rows |= {row.name: row for row in _pass(left, attempt)}
        left = [item for item in left if not rows[item.name].judged]
        if not left:
            break
    return [rows[item.name] for item in configurations]


def _pass(configurations: Sequence[Configuration], attempt: int) -> list[Row]:
    """One measurement of each."""
    shares = [share for i in range(_AT_ONCE) if (share := configurations[i::_AT_ONCE])]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = [row for rows in pool.map(_run, shares) for row in rows]
    return [replace(row, attempt=attempt) for row in found]


def _run(configurations: Sequence[Configuration]) -> list[Row]:
    """One run of the scenario with a backend per configuration."""
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        urls = {c.name: stack.enter_context(running(*c.options)) for c in configurations}
        backends = ",".join(f"{name}={url}" for name, url in urls.items())
        slo = f"ttft:{TTFT_LIMIT_S * 1000:g} tpot:{TPOT_LIMIT_S * 1000:g}"
        process = stack.enter_context(
            started(
                *("--headless", "--backends", backends, "--slo", slo, "--prometheus-url", "none"),
                *("--levels", ",".join(map(str, LEVELS)), "--min-level-seconds", "4.2"),
                *("--min-requests", "20", "--max-level-seconds", "20"),
                *("--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)),
                folder=Path(folder),
            )
        )
        ended = end(process, _LIMIT_S)
        found = list(Path(folder).glob("results/*/summary.json"))
        assert len(found) == 1, ended.text
        summary = json.loads(found[0].read_text(encoding="ascii"))
        late = {name: _late_share(url) for name, url in urls.items()}
    verdicts = {verdict["backend"]["name"]: verdict for verdict in summary["verdicts"]}
    return [_row(item, verdicts[item.name], late[item.name]) for item in configurations]


def _late_share(url: str) -> float:
    """Share of the tokens that the server itself wrote long after the model's time."""
    pairs = [
        pair for line in truth(url) for pair in zip(line["t_due_s"], line["token_s"], strict=False)
    ]
    return sum(at - due > _LATE_S for due, at in pairs) / max(1, len(pairs))


def _row(item: Configuration, verdict: dict[str, Any], late: float) -> Row:
    knees: dict[str, ExpectedKnee] = {name: getattr(item.expected, name) for name in _KNEES}
    expected = {name: _text(knee.first_bad, knee.cause) for name, knee in knees.items()}
    reported = {name: _reported(verdict[name]) for name in _KNEES}
    differing = [name for name in _KNEES if expected[name] != reported[name]]
    evidence = {name: list(verdict[name]["evidence"]) for name in differing}
    said = [line for name in _KNEES for line in verdict[name]["evidence"]]
    judged = not any(_NOT_JUDGED in line for line in said)
    return Row(item.name, expected, reported, evidence, judged and late <= _LATE_SHARE)


def _reported(knee: dict[str, Any]) -> str:
    if knee["status"] == "no_verdict":
        return "no verdict"
    return _text(knee["first_bad"], knee["cause"])


def _text(first_bad: float | None, cause: str | None) -> str:
    return "not reached" if first_bad is None else f"{first_bad:g} {cause}"


def table(rows: Sequence[Row]) -> str:
    """Plain text: a line per configuration, the reported knee only where it differs."""
    lines = [f"{'configuration':<28}" + "".join(f"{name:<34}" for name in _KNEES)]
    for row in rows:
        cells = [
            row.expected[name]
            if row.expected[name] == row.reported[name]
            else f"{row.expected[name]} / REPORTED {row.reported[name]}"
            for name in _KNEES
        ]
        lines.append(f"{row.name:<28}" + "".join(f"{cell:<34}" for cell in cells))
    same = sum(row.same for row in rows)
    again = [f"{row.name}: measurement {row.attempt}" for row in rows if row.attempt > 1]
    return "\n".join([*lines, f"{same} of {len(rows)} as the model says", *again])


def main(arguments: Sequence[str]) -> int:
    """Measure all, print the table, write the JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulated.knee_table",
        description="the reported knees beside those that the modelled servers have: starts "
        f"{COUNT} of them one after the other and runs the concurrency scenario against each, "
        "some ten minutes in all, on a machine that does nothing else",
        epilog="exit code: 0 when every row is as the model says, 1 when one differs",
    )
    parser.add_argument("file", nargs="?", type=Path, help="write the rows here as JSON, too")
    file: Path | None = parser.parse_args(arguments).file
    rows = measure([configuration(seed) for seed in range(COUNT)])
    print(table(rows))
    for row in rows:
        for name, lines in row.evidence.items():
            print(f"{row.name} {name}: " + "; ".join(lines))
    if file is not None:
        body = json.dumps([{**asdict(row), "same": row.same} for row in rows], indent=2)
        file.write_text(body + "\n", encoding="utf-8")
    return 0 if all(row.same for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
