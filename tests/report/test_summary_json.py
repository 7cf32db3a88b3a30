from __future__ import annotations

from dataclasses import replace

from harness.analysis.run import analyse
from harness.report.summary_json import benchmark_scalars
from tests.support.run_builder import PAGED, build_run


def test_no_output_is_a_total_of_the_prompts_alone() -> None:
    run = build_run((PAGED,), (4,), (20,))
    cell = analyse(run.manifest, run.records, run.events, run.series).cells[0]

    def total(output: float | None) -> float | int | None:
        rates = replace(cell.throughput, prompt_tokens_per_s=100.0, output_tokens_per_s=output)
        return benchmark_scalars(replace(cell, throughput=rates))["total_token_throughput"]

    assert (total(0.0), total(5.0), total(None)) == (100.0, 105.0, None)
