"""The words of a suite that become a load's command line, checked by the load's own rules. Pure.

A wrong one would end every load of a night, which is known at its end; and the load takes
shortened names and Locust's own options, too, so what is not an option of the scenario is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

from harness.errors import UsageError, printable, shortened
from harness.load.options import default_texts, text_options
from harness.load.settings import read_settings
from harness.load.workload import AskKind

#: scenarios with one cell per backend and level: how they spell their levels, and their kind
SCENARIOS: dict[str, tuple[str, AskKind]] = {
    "concurrency": ("levels", "levels"),
    "open_loop": ("request-rate", "rate"),
}
#: options of a load that the job itself gives
GIVEN = frozenset(
    {
        *("backends", "prompt-tokens", "output-tokens", "results-dir", "seed", "repeats"),
        *("prometheus-url", "api-key", *(levels for levels, _ in SCENARIOS.values())),
    }
)
#: of a process; ``gpu`` and ``dcgm-url`` read device memory
_OTHERS = ("metrics-host", "metrics-port", "gpu", "dcgm-url")


def wrong_options(
    scenario: str,
    backends: Sequence[str],
    levels: Sequence[int],
    tokens: tuple[int, int],
    options: Mapping[str, str],
) -> Iterator[str]:
    """What is wrong with a run's options; ``tokens`` are those of prompt and answer."""
    spelled, kind = SCENARIOS[scenario]
    given = sorted(GIVEN & set(options))
    if given:
        yield f"options {', '.join(given)} are the job's own"
    known = sorted(({*text_options(kind), *_OTHERS}) - GIVEN)
    unknown = [name for name in options if name not in known and name not in GIVEN]
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=2) or known
        yield f"no option {name} of {scenario}; expected one of {', '.join(near)}"
    if given or unknown:
        return
    texts: dict[str, object] = {
        **default_texts(kind),
        **{"metrics_host": "127.0.0.1", "metrics_port": "auto", "api_key": ""},
        "dcgm_url": "http://127.0.0.1:9400/metrics",
        **{name.replace("-", "_"): value for name, value in options.items()},
        "gpu": [options["gpu"]] if "gpu" in options else [],
        # their URLs are not known here
        "backends": ",".join(f"{name}=http://127.0.0.1" for name in backends),
        spelled.replace("-", "_"): ",".join(map(str, levels)),
        "prompt_tokens": str(tokens[0]),
        "output_tokens": str(tokens[1]),
    }
    try:
        read_settings(scenario, texts, kind)
    except UsageError as error:
        yield shortened(printable(str(error)), 300)
