"""The options of ``kvknee plan``, checked and turned into what the arithmetic takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import OptionError
from harness.kv.engine import Device, EngineOptions
from harness.kv.layouts import LAYOUTS, LayoutName
from harness.kv.lengths import parse_lengths
from harness.kv.plan import plan
from harness.kv.plan_types import Plan, PlanOptions
from harness.model_source import ModelSource
from harness.sizes import parse_size

if TYPE_CHECKING:
    from harness.cli_plan_run import FromRun

ALL = "all"
#: no count of tokens, requests or ranks comes near it
MAX_COUNT = 2**31
MAX_SEED = 2**63


class Asked:
    """The command line's values, checked and turned into ``PlanOptions``."""

    def __init__(self, given: dict[str, str | int | float | bool | None]) -> None:
        self.given = given
        self._check_combinations()
        self.run = self._from_run()

    def plan(self, source: ModelSource) -> Plan:
        """The plan of one model; raises KvkneeError."""
        return plan(source.config, self.options(source), source.name)

    def options(self, source: ModelSource) -> PlanOptions:
        """All options, with the weights' size that lies beside the model."""
        weights, origin = None, "given"
        if self.given["weights"] != "auto":
            weights = self.size("weights")
        elif self.given["vram"] is not None:
            weights, origin = source.weights() or (None, "")
        return PlanOptions(
            engine=self.engine(),
            dtype=str(self.given["dtype"]),
            kv_dtype=str(self.given["kv_dtype"]),
            layout=self.layout(),
            all_layouts=self.given["layout"] == ALL,
            batch=self.count("batch") or 1,
            context=self.count("context"),
            prompt_tokens=self.count("prompt_tokens"),
            output_tokens=self.count("output_tokens"),
            lengths=self.lengths(),
            lengths_source=Path(str(self.given["lengths"] or "")).name,
            seed=int(self.given["seed"] or 0),
            vram_bytes=self.size("vram"),
            utilization=float(self.given["utilization"] or 0),
            weights_bytes=weights,
            weights_source=origin,
            overhead_bytes=self.size("overhead"),
            kv_memory_bytes=self.size("kv_memory"),
            measured=self.run.measured if self.run is not None else None,
        )

    def engine(self) -> EngineOptions:
        """The settings that are named as vLLM's; of a run's server where they were not given."""
        device: Device = "cpu" if self.given["device"] == "cpu" else "gpu"
        info = self.run.info if self.run is not None else None
        if info is not None and not info.gpu_uuids:
            device = "cpu"

        def setting(name: str) -> int | None:
            given = self.count(name)
            return given if given is not None or info is None else getattr(info, name)

        return EngineOptions(
            device=device,
            tp=self.count("tp") or 1,
            max_model_len=setting("max_model_len"),
            block_size=setting("block_size"),
            max_num_batched_tokens=setting("max_num_batched_tokens"),
            max_num_seqs=setting("max_num_seqs"),
            async_scheduling=self.switch("async_scheduling"),
            hybrid_manager=self.switch("hybrid_kv_cache_manager"),
            prefix_caching=self.switch("enable_prefix_caching"),
            state_dtype=self.word("mamba_ssm_cache_dtype"),
        )

    def _from_run(self) -> FromRun | None:
        """What a run measured; None without one. numpy is loaded for it alone."""
        name = self.given["from_run"]
        if name is None:
            if self.given["backend"] is not None:
                raise OptionError("--backend", self.given["backend"], "--from-run beside it")
            return None
        from harness.cli_plan_run import FromRun

        paged = self.given["layout"] in ("paged", ALL)
        return FromRun(Path(str(name)), self.word("backend"), paged=paged)

    def layout(self) -> LayoutName:
        """The layout of the tables; ``all`` keeps paged there and shows every one beside."""
        asked = self.given["layout"]
        if asked == ALL:
            return "paged"
        for name in LAYOUTS:
            if name == asked:
                return name
        raise OptionError("--layout", asked, f"one of {', '.join(LAYOUTS)}, {ALL}")

    def lengths(self) -> tuple[tuple[int, int], ...] | None:
        """The pairs of the lengths file; None without one."""
        name = self.given["lengths"]
        if name is None:
            return None
        try:
            return parse_lengths(Path(str(name)).read_text(encoding="utf-8"), str(name))
        except OSError as error:
            raise OptionError("--lengths", name, f"a readable file ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise OptionError("--lengths", name, "a text file") from error

    def count(self, name: str) -> int | None:
        """A whole number, 1 to ``MAX_COUNT``; None when it was not given."""
        value = self.given[name]
        if value is None:
            return None
        if not 1 <= int(value) <= MAX_COUNT:
            raise OptionError(_flag(name), value, "a whole number, 1 to 2^31")
        return int(value)

    def size(self, name: str) -> int | None:
        """A size in bytes, above 0 but for the overhead; None when it was not given."""
        value = self.given[name]
        if value is None or value == "auto":
            return None
        return parse_size(str(value), _flag(name), least=0 if name == "overhead" else 1)

    def word(self, name: str) -> str | None:
        """A name; None when it was not given."""
        value = self.given[name]
        return None if value is None else str(value)

    def switch(self, name: str) -> bool | None:
        """A switch; None when it was not given."""
        value = self.given[name]
        return None if value is None else bool(value)

    def _check_combinations(self) -> None:
        given = self.given
        share, seed = float(given["utilization"] or 0), int(given["seed"] or 0)
        if not 0 < share <= 1:
            raise OptionError("--utilization", share, "a share above 0 and at most 1")
        if abs(seed) > MAX_SEED:
            raise OptionError("--seed", seed, "a whole number, -2^63 to 2^63")
        if given["kv_memory"] is not None and given["vram"] is not None:
            raise OptionError("--kv-memory", given["kv_memory"], "either --kv-memory or --vram")
        if (given["prompt_tokens"] is None) != (given["output_tokens"] is None):
            one, other = "prompt_tokens", "output_tokens"
            if given[one] is None:
                one, other = other, one
            raise OptionError(
                _flag(one), given[one], f"{_flag(other)} beside it (both are needed), or --context"
            )
        ways = [name for name in ("context", "prompt_tokens", "lengths") if given[name] is not None]
        if len(ways) > 1:
            raise OptionError(
                _flag(ways[1]), given[ways[1]], f"not both {_flag(ways[0])} and {_flag(ways[1])}"
            )
        pools = ("kv_memory", "vram", "from_run")
        if given["lengths"] is not None and all(given[name] is None for name in pools):
            raise OptionError(
                "--lengths", given["lengths"], "--vram, --kv-memory or --from-run beside it"
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
