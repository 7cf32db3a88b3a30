from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from harness.observe import exposition
from harness.observe.backends import CONTIGUOUS, VLLM
from harness.observe.exposition import MetricsUnavailableError, PageReader
from tests.observe.support import CONTIGUOUS as CONTIGUOUS_PAGE
from tests.observe.support import DYNAMIC, IDLE, LOAD_A, LOAD_B, fixture


@pytest.mark.parametrize("name", [IDLE, LOAD_A, LOAD_B, CONTIGUOUS_PAGE, DYNAMIC])
def test_reads_what_the_full_parser_reads(name: str) -> None:
    wanted = VLLM.sample_names | CONTIGUOUS.sample_names
    expected: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(fixture(name)):
        for sample in family.samples:
            if sample.name in wanted:
                expected.setdefault(sample.name, []).append((sample.labels, sample.value))
    page = PageReader(wanted).read(fixture(name))
    assert len(page) >= 16
    assert {
        key: [(dict(sample.labels), sample.value) for sample in samples]
        for key, samples in page.items()
    } == expected


def test_a_second_page_is_read_without_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PageReader(VLLM.sample_names)
    first = reader.read(fixture(LOAD_A))

    def parser(_: str) -> Iterator[Metric]:
        raise AssertionError("parsed again")

    monkeypatch.setattr(exposition, "text_string_to_metric_families", parser)
    second = reader.read(fixture(LOAD_B))
    assert second.keys() == first.keys()
    # 11,110 and 5,235 tokens at the two moments of the recording
    assert second["vllm:generation_tokens_total"][0].value == 11110
    assert first["vllm:generation_tokens_total"][0].value == 5235


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n \n",
        "Internal Server Error",
        "<!doctype html>\n<html><body>Bad gateway</body></html>",
        '{"error": {"message": "not found"}}',
        "# HELP a nothing follows\n# TYPE a gauge\n",
        "\x00\x01\x02",
        'wanted{a="1} 2',
        "wanted",
        "wanted many",
        'wanted{a="1"}',
    ],
)
def test_d96_what_is_no_metrics_page_is_unavailable(text: str) -> None:
    with pytest.raises(MetricsUnavailableError):
        PageReader({"wanted"}).read(text)


def test_d96_the_reason_is_short_and_says_what_came() -> None:
    with pytest.raises(MetricsUnavailableError, match=r"^empty page$"):
        PageReader({"wanted"}).read("")
    with pytest.raises(MetricsUnavailableError, match="starts with '<html>"):
        PageReader({"wanted"}).read("<html>" + "x" * 10_000)


def test_a_page_without_what_is_wanted_is_a_page() -> None:
    assert PageReader({"wanted"}).read("other 1\n") == {}


def test_labels_may_hold_anything() -> None:
    text = 'wanted{a="x } y",b="q\\"uote",c="back\\\\slash, comma"} 3 1700000000000\n'
    for _ in range(2):
        (sample,) = PageReader({"wanted"}).read(text)["wanted"]
        assert sample.labels == {"a": "x } y", "b": 'q"uote', "c": "back\\slash, comma"}
        assert sample.value == 3


def test_d95_values_that_are_not_finite_say_nothing() -> None:
    page = PageReader({"a", "b", "c"}).read("a NaN\nb +Inf\nc 1e3\n")
    assert list(page) == ["c"]
    assert math.isclose(page["c"][0].value, 1000.0)


def test_a_longer_name_is_another_metric() -> None:
    assert PageReader({"wanted"}).read("wanted_total 1\nwanted\t2\n")["wanted"][0].value == 2
