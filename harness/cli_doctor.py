"""The verb ``doctor``: what would stop a user here, and what to do about it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Literal

import click

from harness.errors import OptionError


@click.command()
@click.option(
    "--compose",
    "compose",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE...",
    help="Look at docker compose up with these files, as its -f.  "
    "[default: $COMPOSE_FILE, or docker-compose.yml with docker-compose.cpu.yml where there "
    "is no GPU]",
)
@click.argument("more", nargs=-1, type=click.Path(path_type=Path), metavar="")
@click.option("--local", is_flag=True, help="Look at kvknee up, which needs no Docker.")
@click.option("--gpu", is_flag=True, help="The servers are to run on an NVIDIA GPU.")
@click.option("--cpu", is_flag=True, help="They are to run without one.  [default: as the machine]")
@click.option("--model", help="As kvknee up's: tiny, smollm2, a folder or a hub id.")
@click.option("--levels", help="As the scenario's.  [default: $KVKNEE_LEVELS or 1,4,16,32]")
@click.option(
    "--results-dir",
    "results",
    type=click.Path(path_type=Path),
    help="As the scenario's.  [default: $KVKNEE_RESULTS_DIR or results]",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="As kvknee up's.  [default: $KVKNEE_HOME or .kvknee]",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, with stable names.")
def doctor(
    compose: tuple[Path, ...],
    more: tuple[Path, ...],
    local: bool,
    gpu: bool,
    cpu: bool,
    model: str | None,
    levels: str | None,
    results: Path | None,
    home: Path | None,
    as_json: bool,
) -> int:
    """Name what would stop you on this machine, before you meet it.

    Each row is ok, a warning (works, but know it) or a fault (blocks you), with what is
    wrong and, after the arrow, what to do. Nothing is changed, started or downloaded, but
    for the config.json of a model on the hub.

    \b
    kvknee doctor                    docker compose up and kvknee up
    kvknee doctor --local            kvknee up alone, which needs no Docker
    kvknee doctor --gpu              the Compose file for a GPU, and its driver
    kvknee doctor --compose docker-compose.yml docker-compose.cpu.yml
    kvknee doctor --local --model org/name --levels 1,64,512

    Exit codes: 0 nothing blocks what was asked, 1 a fault does, 2 bad input. In --json,
    "ways" holds the verdicts and "checks" the rows; their names stay the same.

    \f
    Raises UsageError for bad input.
    """
    from harness.doctor.examine import Question, examine
    from harness.doctor.probes import this_machine
    from harness.doctor.text import render, to_json
    from harness.stack.state import home_folder

    if more and not compose:
        raise OptionError("doctor", str(more[0]), "--compose before a Compose file")
    question = Question(
        home=home or home_folder(),
        compose=(*compose, *more),
        local=local,
        device=_device(gpu, cpu),
        model=model,
        levels=levels,
        results=results,
    )
    report = examine(question, this_machine())
    if as_json:
        click.echo(json.dumps(to_json(report), indent=2))
    else:
        on_terminal = sys.stdout.isatty()
        columns = shutil.get_terminal_size().columns if on_terminal else None
        click.echo(render(report, columns), nl=False)
    return report.exit_code


def _device(gpu: bool, cpu: bool) -> Literal["auto", "gpu", "cpu"]:
    if gpu and cpu:
        raise OptionError("--gpu", "--gpu --cpu", "one of the two, or neither")
    return "gpu" if gpu else "cpu" if cpu else "auto"
