"""Cases from the field about what the server itself states: E113, E114."""

from __future__ import annotations

from harness.analysis.run import analyse
from harness.observe import names
from harness.observe.series import Series
from tests.analysis.one_run import cell, changed, codes, one_level, summed
from tests.support.fake_records import failure
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run, build_run, replace_series


def with_hits(run: Run, share: float) -> Run:
    """The run with a share of the prompt tokens found in the prefix cache."""
    queries = run.series["paged"].values[names.PREFIX_QUERIES_TOTAL]
    hits = Series(queries.t_s, queries.v * share)
    run.series["paged"] = replace_series(run.series["paged"], {names.PREFIX_HITS_TOTAL: hits})
    return run


def test_e113_prefix_hits_from_one_per_cent_on_are_a_warning() -> None:
    assert codes(summed(with_hits(one_level(), 0.009))) == set()
    summary = summed(with_hits(one_level(), 0.011))
    finding = next(f for f in summary.findings if f.code == "prefix_cache_hits")
    assert finding.severity == "warning"
    assert "1.1 % of the prompt tokens came from the prefix cache" in finding.text


def test_e113_the_same_prompts_in_the_second_step_are_a_warning() -> None:
    # the second level asks what the first one asked: half of all prompts are repeats
    run = build_run((PAGED,), (4, 16), (60, 200))
    first = sum(r.cell.level == 4 for r in run.records)
    run.records = run.records[: 2 * first]
    run = changed(run, lambda i, _: {"prompt_hash": f"prompt {i % first}"})
    finding = next(f for f in summed(run).findings if f.code == "prompts_not_unique")
    assert f"{2 * first} requests had only {first} distinct prompts" in finding.text


def test_e114_capacity_uses_the_servers_count_of_the_prompt() -> None:
    # 512 by the client, 1,606 by the server (an image): ceil((1,606 + 128) / 128) = 14 of the
    # 127 blocks a request, so 9 fit, where 512 + 128 would give 25
    run = changed(one_level(4, 20), lambda _, __: {"prompt_tokens": 1606})
    summary = summed(run)
    predicted = summary.verdicts[0].predicted
    finding = next(f for f in summary.findings if f.code == "prompt_tokens_differ")
    assert "counted 1606 to 1606 prompt tokens where 512 were asked for" in finding.text
    assert "memory uses the server's count" in finding.text
    held = cell(summary, "paged", 4).memory
    assert held is not None and held.client_tokens_held is not None
    # four requests, each with its prompt: more than 4 x 1,606 tokens, which 512 never gives
    assert held.client_tokens_held.maximum > 4 * 1606
    assert predicted is not None and predicted.requests == 9


def test_e114_an_answer_far_shorter_than_asked_is_a_failure_and_no_latency() -> None:
    # 512 asked, 43 got
    run = build_run((PAGED,), (4,), (20,))
    run.records = [
        failure(r.cell, r.seq, user=r.user, t_intended_s=r.t_intended_s, t_sent_s=r.t_sent_s,
                t_end_s=r.t_end_s, outcome="short_output", error="43 of 512 tokens")
        if r.seq % 2 else r
        for r in run.records
    ]  # fmt: skip
    summary = analyse(run.manifest, run.records, run.events, run.series)
    finding = next(f for f in summary.findings if f.code == "failures")
    assert "short_output" in finding.text and "43 of 512 tokens" in finding.text
    found = summary.cells[0]
    assert found.latency.ttft_s.n == found.counts.ok
