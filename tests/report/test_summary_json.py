from __future__ import annotations

import json
from dataclasses import replace

from harness.analysis.run import analyse
from harness.report.summary_json import benchmark_scalars, summary_bytes
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run, replace_manifest


def test_no_output_is_a_total_of_the_prompts_alone() -> None:
    run = build_run((PAGED,), (4,), (20,))
    cell = analyse(run.manifest, run.records, run.events, run.series).cells[0]

    def total(output: float | None) -> float | int | None:
        rates = replace(cell.throughput, prompt_tokens_per_s=100.0, output_tokens_per_s=output)
        return benchmark_scalars(replace(cell, throughput=rates))["total_token_throughput"]

    assert (total(0.0), total(5.0), total(None)) == (100.0, 105.0, None)


def test_the_file_is_ascii_and_reads_back_as_it_was_said() -> None:
    run = build_run((PAGED,), (4,), (20,))
    # C1 control, bidi mark, DEL, and one beyond 16 bits: U+1F600 is D83D DE00 in UTF-16
    words = "é \x9b \u202e \x7f \\u0041 \U0001f600"
    run.manifest = replace_manifest(run.manifest, fingerprint={"model": words})
    raw = summary_bytes(analyse(run.manifest, run.records, run.events, run.series))
    assert raw.isascii() and b"\x7f" not in raw
    assert b"\\u009b \\u202e \\u007f" in raw and b"\\ud83d\\ude00" in raw
    assert json.loads(raw)["fingerprint"]["model"] == words
