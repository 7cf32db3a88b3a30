"""``kvknee plan MODEL``: what a model's KV cache costs, and how many requests fit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import OptionError
from harness.kv.engine import Device, EngineOptions
from harness.kv.fold import LEAST_WIDTH, WIDTH
from harness.kv.layouts import LAYOUTS, LayoutName
from harness.kv.lengths import parse_lengths
from harness.kv.plan import plan
from harness.kv.plan_types import DEFAULT_UTILIZATION, Plan, PlanOptions
from harness.kv.text import render, render_comparison
from harness.model_source import ModelSource, read_model
from harness.sizes import parse_size

if TYPE_CHECKING:
    from harness.cli_plan_run import FromRun

ALL = "all"
#: no count of tokens, requests or ranks comes near it
MAX_COUNT = 2**31
MAX_SEED = 2**63


@click.command("plan")
@click.argument("models", metavar="[MODEL...]", nargs=-1)
@click.option("--compare", is_flag=True, help="Put several models side by side.")
@click.option(
    "--kv-dtype",
    "--kv-cache-dtype",
    default="auto",
    help="auto, fp16, bf16, fp32, fp8, fp8_ds_mla, int8, int4.",
)
@click.option(
    "--dtype",
    default="auto",
    help="The weights' dtype, as vLLM's: auto (the config's), float16, bfloat16, float32.",
)
@click.option(
    "--device",
    type=click.Choice(["gpu", "cpu"]),
    default="gpu",
    show_default=True,
    help="Whose defaults of vLLM apply (block size, batch, scheduling).",
)
@click.option(
    "--tp",
    "--tensor-parallel-size",
    type=int,
    default=1,
    show_default=True,
    help="Tensor-parallel ranks.",
)
@click.option("--vram", help="Memory of one device: 24GiB is 24 x 2^30 B, 24GB 24 x 10^9 B.")
@click.option(
    "--utilization",
    "--gpu-memory-utilization",
    type=float,
    default=DEFAULT_UTILIZATION,
    show_default=True,
    help="Share of --vram that the engine may take.",
)
@click.option("--weights", default="auto", show_default=True, help="Their size, or auto.")
@click.option("--overhead", help="Context, graphs and activations; an assumption by default.")
@click.option(
    "--kv-memory", "--kv-cache-memory-bytes", help="The KV pool itself, instead of --vram."
)
@click.option(
    "--from-run",
    metavar="DIR",
    help="A run on this hardware: its KV pool, its overhead and its bytes per token are taken, "
    "and its model where no MODEL is named.",
)
@click.option("--backend", help="Which backend of --from-run, where it has several.")
@click.option(
    "--batch", type=int, default=1, show_default=True, help="Requests that the bytes are for."
)
@click.option("--context", type=int, help="Tokens of a request, prompt and output together.")
@click.option("--prompt-tokens", type=int, help="With --output-tokens, instead of --context.")
@click.option("--output-tokens", type=int, help="With --prompt-tokens, instead of --context.")
@click.option(
    "--lengths",
    help="A file of lengths, one 'prompt output' pair a line: safe in 99% of random draws.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of --lengths' simulation.")
@click.option("--layout", default="paged", show_default=True, help=f"{', '.join(LAYOUTS)}, all.")
@click.option("--max-model-len", type=int, help="As vLLM's; the config's context by default.")
@click.option("--block-size", type=int, help="Tokens per block, as vLLM's.")
@click.option("--max-num-batched-tokens", type=int, help="Tokens of one step, as vLLM's.")
@click.option(
    "--max-num-seqs",
    type=int,
    help="Most requests running at once, as vLLM's: caps every number of requests.",
)
@click.option(
    "--async-scheduling/--no-async-scheduling",
    default=None,
    help="As vLLM's: two batches in flight, so sliding layers hold more.",
)
@click.option(
    "--hybrid-kv-cache-manager/--disable-hybrid-kv-cache-manager",
    default=None,
    help="As vLLM's: off, sliding layers are held as full ones.",
)
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    default=None,
    help="As vLLM's: it decides how recurrent states are kept.",
)
@click.option(
    "--mamba-ssm-cache-dtype",
    help="Of recurrent states, as vLLM's: auto, float32, float16, bfloat16.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, with stable names.")
def plan_command(
    models: tuple[str, ...], compare: bool, as_json: bool, **given: str | int | float | bool | None
) -> None:
    """What the KV cache of MODEL costs, and how many requests fit.

    MODEL is a config.json, a folder, or a hub id. Each figure is shown with its working.

    Two capacities are told: "safe concurrency" is the worst case, all requests at full length at
    once; "steady state" lets each be somewhere between its prompt and its end, as vLLM does. A
    pool and an overhead of --from-run count at the same --max-model-len alone.

    Sizes: 1 GiB is 2^30 bytes, 1 GB is 10^9; both are taken, and GiB are shown with the exact
    bytes beside.

    Layouts: paged sets blocks aside as vLLM does. contiguous-max sets max_model_len aside,
    contiguous-pow2 the next power of two (at most max_model_len), contiguous-exact prompt +
    output. dynamic promises prompt + output: its requests are those that the contiguous server
    admits, and "safe with the copy" is how many leave room for the copy that torch.cat makes.

    \b
    kvknee plan config.json --vram 24GiB --prompt-tokens 512 --output-tokens 128
    kvknee plan config.json --kv-memory 8GiB --context 4096 --layout all
    kvknee plan config.json --vram 80GiB --tp 2 --kv-dtype fp8 --lengths lengths.txt
    kvknee plan a/config.json b/config.json --compare --json
    kvknee plan --from-run results/20260101-000000-concurrency --prompt-tokens 2048 \\
        --output-tokens 256

    \f
    Raises KvkneeError for bad input.
    """
    if len(models) > 1 and not compare:
        raise OptionError("MODEL", " ".join(models), "one model, or --compare for several")
    asked = Asked(given)
    if not models and asked.run is None:
        raise OptionError("MODEL", "", "a config.json, a folder or a hub id, or --from-run DIR")
    sources = [read_model(model) for model in models]
    if not sources and asked.run is not None:
        sources = [asked.run.model()]
    plans = [asked.plan(source) for source in sources]
    if as_json:
        shown = {"models": [each.to_json() for each in plans]} if compare else plans[0].to_json()
        click.echo(json.dumps(shown, indent=2))
    elif compare:
        _print(render_comparison(plans, _width()))
    else:
        _print(render(plans[0], all_layouts=given["layout"] == ALL, width=_width()))


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


def _width() -> int:
    """Columns for text: those of a narrow terminal, else ``WIDTH``."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        # no terminal, or no standard output at all
        return WIDTH
    return max(LEAST_WIDTH, min(WIDTH, columns)) if columns else WIDTH


def _print(text: str) -> None:
    """Write ``text``; what the output's encoding lacks (a model's name) is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
