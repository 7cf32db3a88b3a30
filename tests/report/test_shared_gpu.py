"""Memory of a GPU that several servers use: one total, said once, and nobody's own figure."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from harness.records import Scrape
from harness.report.build import build_report
from harness.rundir import GzipJournal, RunDir
from tests.observe.support import DCGM, fixture
from tests.support.fake_server import PAGED, STATIC
from tests.support.run_builder import build_run, replace_manifest
from tests.support.run_files import write_run

GPU = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
OTHER = "GPU-0c1e7f2a-4a61-22f1-93a1-7de0c4f7a0b2"


def reports(folder: Path, gpus: dict[str, tuple[str, ...]]) -> tuple[dict[str, object], str, str]:
    """summary.json, report.md and report.html of a run whose GPUs the exporter showed twice."""
    run = build_run((PAGED, STATIC), (4,), (20,))
    owners = tuple(
        msgspec.structs.replace(info, gpu_uuids=gpus[info.name]) for info in run.manifest.backends
    )
    run.manifest = replace_manifest(run.manifest, backends=owners)
    path = write_run(run, folder)
    journal = GzipJournal(RunDir(path).scrape_path("dcgm"))
    # the recorded page has 20,349 MiB; the second one 21,349 MiB
    first = fixture(DCGM)
    assert "20349" in first
    for t_s, text in ((1.0, first), (2.0, first.replace("20349", "21349"))):
        journal.append(Scrape(t_s=t_s, took_s=0.01, status=200, text=text))
    journal.close()
    build_report(path)
    return (
        json.loads((path / "summary.json").read_bytes()),
        (path / "report.md").read_text(),
        (path / "report.html").read_text(),
    )


def test_the_total_of_a_shared_gpu_is_said_once(tmp_path: Path) -> None:
    """(20,349 + 21,349) / 2 = 20,849 MiB = 20.4 GiB on average, 21,349 MiB = 20.8 GiB at most."""
    summary, text, page = reports(tmp_path, {"paged": (GPU,), "contiguous": (GPU,)})
    assert summary["shared_gpus"] == [
        {
            "backends": ["paged", "contiguous"],
            "gpu_uuids": [GPU],
            "samples": 2,
            "total_used_bytes": {"mean": 20849 * 2**20, "maximum": 21349 * 2**20},
        }
    ]
    words = (
        f"GPU {GPU}: 20.4 GiB in use on average over the run, 20.8 GiB at most (2 samples). That "
        "is one total for all servers there (paged, contiguous); no server's part of it is known."
    )
    assert text.count("one total for all servers") == 1
    assert words in text.replace("\\", "")
    assert page.count("one total for all servers") == 1
    assert words in page.replace("&#39;", "'")


def test_gpus_of_their_own_are_no_shared_ones(tmp_path: Path) -> None:
    summary, text, page = reports(tmp_path, {"paged": (GPU,), "contiguous": (OTHER,)})
    assert summary["shared_gpus"] == []
    assert "one total for all" not in text + page
