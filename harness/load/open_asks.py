"""The requests of an open loop: from an arrival to what is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import KvkneeError
from harness.load.exchange import Ask
from harness.load.preflight import PreparedBackend
from harness.plan.arrivals import Arrival, OpenLevels
from harness.plan.prompts import TokenPrompts, prompt_hash
from harness.plan.replay_prompts import ReplayPrompts
from harness.records import CellKey
from harness.workload import Workload

#: Numbers of prompts that one level has for itself, whoever makes its requests.
_LEVEL_NUMBERS = 2**20


class AskMaker:
    """Makes the requests of a run; numbers them over the run."""

    def __init__(
        self,
        policy: OpenLevels,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        worker: str,
    ) -> None:
        self._policy = policy
        self._workload = workload
        self._backends = backends
        self._worker = worker
        self._seq = 0
        self._replayed: dict[tuple[str, int], ReplayPrompts] = {}

    def ask(self, cell: CellKey, start_s: float, arrival: Arrival) -> Ask:
        """One request of a level that began at ``start_s``; it is no user's yet."""
        self._seq += 1
        # the same for every worker, so that no two of them send one prompt
        number = self._policy.cells.index(cell) * _LEVEL_NUMBERS + arrival.number
        backend, row = self._backends[cell.backend], arrival.row
        if row is None:
            prompt = backend.prompts.prompt(number)
            lengths = self._workload.prompt_tokens, self._workload.output_tokens
        else:
            prompt = self._replay(cell, backend).prompt(number, row)
            lengths = row.prompt_tokens, row.output_tokens
        return Ask(
            worker=self._worker,
            seq=self._seq,
            cell=cell,
            user=0,
            t_intended_s=start_s + arrival.at_s,
            prompt=prompt,
            prompt_hash=prompt_hash(prompt),
            prompt_tokens=lengths[0],
            output_tokens=lengths[1],
        )

    def _replay(self, cell: CellKey, backend: PreparedBackend) -> ReplayPrompts:
        key = cell.backend, cell.repeat
        if key not in self._replayed:
            base, replay = backend.prompts, self._policy.replay
            if replay is None or not isinstance(base, TokenPrompts):
                raise KvkneeError("a trace is replayed with prompts of token ids")
            self._replayed[key] = ReplayPrompts(
                base,
                max(row.prompt_tokens for row in replay.rows),
                replay.block_tokens,
                cell.repeat,
            )
        return self._replayed[key]
