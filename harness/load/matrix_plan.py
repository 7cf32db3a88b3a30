"""A matrix before its first cell: which cells there are, how long they may take, the plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from harness.errors import printable
from harness.load.client import StreamClient
from harness.load.clock import Clock
from harness.load.exchange import Ask
from harness.load.plan import RunPlan
from harness.load.preflight import PreparedBackend
from harness.load.settings import LoadSettings
from harness.manifest import BackendInfo
from harness.plan.estimate import CellTimes, Probe, Speed
from harness.plan.matrix import MatrixLevels, matrix_cells, why_left_out
from harness.plan.matrix_text import plan_lines
from harness.plan.prompts import prompt_hash
from harness.records import CellKey

#: Numbers of the probes' prompts, apart from those of the load and of the preflight.
_FIRST_PROBE_NUMBER = 2**31 + 2**20
#: A probe is quick: no prompt is longer, unless all of the matrix are, and no answer.
_LONGEST_PROMPT, _LONGEST_ANSWER = 2048, 16


def matrix_levels(settings: LoadSettings, backends: Sequence[BackendInfo]) -> MatrixLevels:
    """The policy of a matrix; a resumed run's finished cells are no part of it."""
    matrix, resume = settings.matrix, settings.resume
    finished = {item.cell for item in resume.finished} if resume is not None else set()
    cells = [cell for cell in matrix_cells(settings.workload, backends) if cell not in finished]
    infos = {info.name: info for info in backends}
    skip = matrix is not None and matrix.limits.skip_beyond_budget
    reasons = {
        cell: why_left_out(cell, infos[cell.backend], skip_beyond_budget=skip) for cell in cells
    }
    return MatrixLevels(cells, {cell: why for cell, why in reasons.items() if why is not None})


def with_estimate(plan: RunPlan, clock: Clock) -> RunPlan:
    """Ask each backend for its speed, show the plan, and give the policy its estimate."""
    settings, policy = plan.settings, plan.policy
    if settings.matrix is None or not isinstance(policy, MatrixLevels):
        raise TypeError("an estimate is made for a matrix")
    finished = settings.resume.finished if settings.resume is not None else ()
    speeds = {
        name: speed
        for name, backend in plan.backends.items()
        if (speed := probed_speed(backend, policy.planned, clock)) is not None
    }
    times = CellTimes.of(settings.workload, speeds, finished)
    budget_s = settings.matrix.limits.budget_s
    for line in plan_lines(policy, settings.workload, times, finished, budget_s):
        sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()
    policy = MatrixLevels(policy.cells, policy.left_out, budget_s, times, finished)
    nothing_left = not policy.cells and settings.resume is not None and settings.resume.reported
    return replace(plan, policy=policy, only_shown=settings.matrix.plan_only or nothing_left)


def probed_speed(backend: PreparedBackend, cells: Sequence[CellKey], clock: Clock) -> Speed | None:
    """From a short and a longer request; None when neither was answered or nothing is asked."""
    own = [cell for cell in cells if cell.backend == backend.info.name]
    if not own:
        return None
    lengths = [cell.prompt_tokens for cell in own]
    shortest = min(lengths)
    longer = max(shortest, min(max(lengths), _LONGEST_PROMPT))
    output_tokens = min([_LONGEST_ANSWER, *(cell.output_tokens for cell in own)])
    probes: list[Probe] = []
    for number, prompt_tokens in enumerate(sorted({shortest, longer})):
        probe = _probe(backend, prompt_tokens, output_tokens, number, clock)
        probes += [probe] if probe is not None else []
    return Speed.of(probes)


def _probe(
    backend: PreparedBackend, prompt_tokens: int, output_tokens: int, number: int, clock: Clock
) -> Probe | None:
    prompt = backend.prompts_of(prompt_tokens).prompt(_FIRST_PROBE_NUMBER + number)
    ask = Ask(
        worker="probe",
        seq=number,
        cell=CellKey(backend.info.name, backend.info.mode, prompt_tokens, output_tokens, 1),
        user=0,
        t_intended_s=clock.monotonic(),
        prompt=prompt,
        prompt_hash=prompt_hash(prompt),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    client = StreamClient(backend.options, backend.dialect, clock)
    try:
        record = client.perform(ask, lambda _: None)
    finally:
        client.close()
    if record.outcome != "ok" or not record.token_us:
        return None
    tokens = record.output_tokens or len(record.token_us)
    later_s = sum(record.token_us[1:]) * 1e-6
    return Probe(
        prompt_tokens=prompt_tokens,
        ttft_s=record.token_us[0] * 1e-6,
        tpot_s=later_s / (tokens - 1) if tokens > 1 else None,
    )
