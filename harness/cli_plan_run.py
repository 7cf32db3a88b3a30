"""``kvknee plan --from-run``: what a run measured, read from its directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.fit_types import Fit
from harness.analysis.fits_run import fit_cells
from harness.analysis.reconcile_cells import RunCell, cells_of_run, explained
from harness.analysis.reconcile_types import Reconciled, Stage
from harness.errors import OptionError, RunDirError, printable, shortened
from harness.kv.measured import FLAG, Measured, part_line
from harness.manifest import BackendInfo, Manifest
from harness.model_source import ModelSource
from harness.observe.collect import all_series
from harness.observe.series import KvPool
from harness.report.theories import run_theories
from harness.report.units import without_folder
from harness.rundir import RunDir

_PARTS = {
    "block_tables": "block tables",
    "before_load": "held before the load",
    "temporaries": "temporaries",
    "allocator": "torch's allocator",
    "cuda_context": "CUDA context and graphs",
}


class FromRun:
    """One backend of a run: what it was, and what was measured of it."""

    def __init__(self, path: Path, backend: str | None, *, paged: bool) -> None:
        """``paged``: which kind is meant where no backend is named and a run has several.

        Raises KvkneeError for a directory that is no run, or has no such backend.
        """
        self._run = RunDir.open(path)
        self._shown = shortened(str(path), 120)
        manifest = self._run.manifest()
        self.info = _backend(manifest, backend, paged=paged, shown=self._shown)
        self.measured = self._measure(manifest)

    def model(self) -> ModelSource:
        """The model that the run kept; raises OptionError when it kept none."""
        config = self._run.model_config(self.info.name)
        if config is None:
            raise OptionError(
                "MODEL",
                "",
                f"a config.json, a folder or a hub id: {self._shown} kept no config of "
                f"{printable(self.info.name)}",
            )
        return ModelSource(
            without_folder(self.info.model), config, folder=self._run.path / "configs"
        )

    def _measure(self, manifest: Manifest) -> Measured:
        run, info = self._run, self.info
        series = all_series(run, manifest)
        theories = run_theories(run, manifest)
        cells = cells_of_run(manifest, run.records(), run.events(), series, theories)
        why = run.absent.get("records.jsonl")
        if why is not None:
            raise RunDirError(f"{self._shown}: records.jsonl {why}, so nothing was measured")
        own = [cell for cell in cells if cell.info.name == info.name]
        found = series.get(info.name)
        pool = found.pool if found is not None else None
        overhead, parts = _overhead(own, len(info.gpu_uuids))
        return _with_slope(
            Measured(
                run=printable(self._run.path.resolve().name),
                backend=printable(info.name),
                max_model_len=info.max_model_len,
                pool_bytes=_pool_bytes(pool, info),
                num_blocks=info.num_blocks,
                block_size=info.block_size,
                overhead_bytes=overhead,
                overhead=parts,
            ),
            fit_cells(own),
        )


def _backend(manifest: Manifest, name: str | None, *, paged: bool, shown: str) -> BackendInfo:
    names = ", ".join(printable(info.name) for info in manifest.backends)
    if name is not None:
        for info in manifest.backends:
            if info.name == name:
                return info
        raise OptionError("--backend", name, f"one of {names} (those of {shown})")
    kind = [info for info in manifest.backends if (info.kind == "vllm") is paged]
    if len(manifest.backends) == 1:
        return manifest.backends[0]
    if len(kind) == 1:
        return kind[0]
    raise OptionError(FLAG, shown, f"--backend beside it: one of {names or 'no backend at all'}")


def _pool_bytes(pool: KvPool | None, info: BackendInfo) -> int | None:
    if pool is not None and pool.total_bytes is not None:
        return pool.total_bytes // pool.engines
    return info.kv_budget_bytes


def _with_slope(found: Measured, fits: Sequence[Fit]) -> Measured:
    """With the fitted bytes per token place, where the run's lengths tell them."""
    for fit in fits:
        if fit.kind != "kv_bytes" or fit.absent is not None:
            continue
        slope = fit.terms[-1]
        if slope is not None:
            return Measured(
                **{
                    **vars(found),
                    "token_bytes": slope.value,
                    "token_bytes_low": slope.low,
                    "token_bytes_high": slope.high,
                }
            )
    return found


def _overhead(cells: Sequence[RunCell], gpus: int) -> tuple[int | None, tuple[str, ...]]:
    """Bytes beside KV and weights on one device, of the level with the most; or why none."""
    stages: list[Stage] = []
    absent: dict[str, None] = {}
    for item in explained(cells):
        if not isinstance(item, Reconciled):
            continue
        absent |= dict.fromkeys(text for text in item.absent if text.startswith("device"))
        for name in ("device", "process"):
            stage = item.stage(name)
            if stage is not None:
                stages.append(stage)
    if not stages:
        return None, tuple(absent) or ("no level's memory could be explained",)
    weighed = [stage for stage in stages if _weights(stage) is not None]
    if not weighed:
        return None, ("the size of the weights is not known, so neither is what is beside them",)
    most = max(weighed, key=_beside)
    known = [
        part_line(_PARTS[step.reason], step.amount_bytes)
        for step in most.steps
        if step.reason in _PARTS
    ]
    if most.unexplained_bytes > 0:
        known.append(part_line("without a name", most.unexplained_bytes))
    where = "GPU memory" if most.name == "device" else "the process's resident memory"
    return max(0, _beside(most)) // max(1, gpus), (f"measured as {where}", *known)


def _weights(stage: Stage) -> int | None:
    return next((step.amount_bytes for step in stage.steps if step.reason == "weights"), None)


def _beside(stage: Stage) -> int:
    """What a stage's end has beyond KV, empty slots and weights."""
    slots = sum(step.amount_bytes for step in stage.steps if step.reason == "empty_slots")
    return stage.end_bytes - stage.start_bytes - slots - (_weights(stage) or 0)
