from __future__ import annotations

import pytest

from harness.errors import OptionError
from harness.observe import names as n
from harness.observe.collect import all_series
from harness.observe.dcgm import FB_USED, device_memory, gpu_used_bytes, parse_gpus
from harness.observe.exposition import PageReader
from harness.records import Scrape
from harness.rundir import RunDir
from tests.observe.support import DCGM, backend, fixture, manifest, write_scrapes

GPU_0 = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
GPU_1 = "GPU-0c1e7f2a-4a61-22f1-93a1-7de0c4f7a0b2"


def used(text: str) -> dict[str, float]:
    return gpu_used_bytes(PageReader({FB_USED}).read(text))


def test_d99_frame_buffer_is_in_mebibytes() -> None:
    # 24,564 MiB are 25.757e9 B
    assert used(f'{FB_USED}{{UUID="GPU-a"}} 24564\n') == {"GPU-a": 24564 * 2**20}
    assert pytest.approx(25.757e9, rel=1e-4) == 24564 * 2**20


def test_a_page_of_the_exporter() -> None:
    assert used(fixture(DCGM)) == {GPU_0: 20349 * 2**20, GPU_1: 337 * 2**20}


def test_instances_of_a_gpu_add_up_and_pods_do_not() -> None:
    text = (
        f'{FB_USED}{{UUID="GPU-a",GPU_I_ID="1",GPU_I_PROFILE="1g.5gb"}} 100\n'
        f'{FB_USED}{{UUID="GPU-a",GPU_I_ID="2",GPU_I_PROFILE="1g.5gb"}} 200\n'
        f'{FB_USED}{{UUID="GPU-b",pod="x"}} 700\n'
        f'{FB_USED}{{UUID="GPU-b",pod="y"}} 700\n'
    )
    assert used(text) == {"GPU-a": 300 * 2**20, "GPU-b": 700 * 2**20}


def test_each_backend_has_its_gpu(run: RunDir) -> None:
    write_scrapes(run, "dcgm", [fixture(DCGM)] * 2)
    owners = backend(gpu_uuids=(GPU_0,)), backend("contiguous", "contiguous", gpu_uuids=(GPU_1,))
    found = all_series(run, manifest(*owners))
    assert found["paged"].values[n.DEVICE_USED_BYTES].v.tolist() == [20349 * 2**20] * 2
    assert found["contiguous"].values[n.DEVICE_USED_BYTES].v.tolist() == [337 * 2**20] * 2


def test_several_gpus_add_up_where_all_were_seen(run: RunDir) -> None:
    pages = [
        f'{FB_USED}{{UUID="a"}} 10\n{FB_USED}{{UUID="b"}} 20\n',
        f'{FB_USED}{{UUID="a"}} 10\n',
        f'{FB_USED}{{UUID="a"}} 11\n{FB_USED}{{UUID="b"}} 20\n',
    ]
    write_scrapes(run, "dcgm", pages)
    found = device_memory(run, manifest(backend(gpu_uuids=("a", "b"))))
    series = found.per_backend["paged"]
    assert series.t_s.tolist() == [0, 2]
    assert series.v.tolist() == [30 * 2**20, 31 * 2**20]


def test_a_shared_gpu_gives_a_total_and_no_figure_per_backend(run: RunDir) -> None:
    write_scrapes(run, "dcgm", [fixture(DCGM)])
    # b uses both GPUs, so that neither a's nor b's part is known; c has none
    owners = (
        backend("a", gpu_uuids=(GPU_0,)),
        backend("b", gpu_uuids=(GPU_0, GPU_1)),
        backend("c"),
    )
    known = manifest(*owners)
    (device,) = device_memory(run, known).shared
    assert device.backends == ("a", "b")
    assert set(device.uuids) == {GPU_0, GPU_1}
    assert device.total_used_bytes.v.tolist() == [(20349 + 337) * 2**20]
    found = all_series(run, known)
    assert all(n.DEVICE_USED_BYTES not in series.values for series in found.values())
    assert found["a"].shared_device is found["b"].shared_device is not None
    assert found["c"].shared_device is None


def test_groups_that_a_third_backend_joins(run: RunDir) -> None:
    write_scrapes(run, "dcgm", [fixture(DCGM)])
    owners = (
        backend("a", gpu_uuids=(GPU_0,)),
        backend("b", gpu_uuids=(GPU_1,)),
        backend("c", gpu_uuids=(GPU_0, GPU_1)),
    )
    (device,) = device_memory(run, manifest(*owners)).shared
    assert sorted(device.backends) == ["a", "b", "c"]


def test_a_gpu_that_the_exporter_does_not_know(run: RunDir) -> None:
    write_scrapes(run, "dcgm", [fixture(DCGM)])
    series = all_series(run, manifest(backend(gpu_uuids=("GPU-x",))))["paged"]
    assert series.missing == (n.DEVICE_USED_BYTES,)
    assert series.failures == (f"DCGM shows no GPU GPU-x; it shows {GPU_1}, {GPU_0}",)


@pytest.mark.parametrize("scraped", [True, False])
def test_an_exporter_that_is_not_there(run: RunDir, scraped: bool) -> None:
    if scraped:
        write_scrapes(run, "dcgm", [Scrape(t_s=0, took_s=0, error="cannot connect")])
    found = device_memory(run, manifest(backend(gpu_uuids=(GPU_0,))))
    assert found.per_backend == {}
    why = "cannot connect" if scraped else "it was not scraped"
    assert found.faults == {"paged": f"DCGM gave no {FB_USED}: {why}"}


def test_without_gpus_nothing_is_read(run: RunDir) -> None:
    found = device_memory(run, manifest(backend()))
    assert (found.per_backend, found.shared, found.faults) == ({}, (), {})


def test_gpus_are_given_per_backend() -> None:
    names = ["paged", "contiguous"]
    assert parse_gpus("paged=GPU-a", names) == {"paged": ["GPU-a"]}
    assert parse_gpus("paged=GPU-a+GPU-b, contiguous=GPU-c", names) == {
        "paged": ["GPU-a", "GPU-b"],
        "contiguous": ["GPU-c"],
    }


@pytest.mark.parametrize(
    "text", ["", "GPU-a", "paged=", "pagd=GPU-a", "paged=GPU-a,paged=GPU-b", "paged=GPU-a+"]
)
def test_a_bad_gpu_option_is_one_clear_line(text: str) -> None:
    with pytest.raises(OptionError, match="--gpu") as caught:
        parse_gpus(text, ["paged", "contiguous"])
    assert "paged, contiguous" in str(caught.value)
    assert "\n" not in str(caught.value)
