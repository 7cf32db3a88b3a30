"""A suite as ``kvknee nightly`` runs it: read, and its loads checked by the load's own rules.

A wrong option would end every load of a night, which is known at its end; and the load takes
shortened names and Locust's own options, too, so what is not an option of the scenario is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from harness.errors import UsageError, printable, shortened
from harness.load.options import default_texts, text_options
from harness.load.settings import read_settings
from harness.load.workload import AskKind
from harness.nightly.suite import GIVEN, SCENARIOS, Run, Suite, read_suite

_KINDS: dict[str, AskKind] = {"concurrency": "levels", "open_loop": "rate"}
#: of a process; ``gpu`` and ``dcgm-url`` read device memory
_OTHERS = ("metrics-host", "metrics-port", "gpu", "dcgm-url")


def runnable_suite(path: Path) -> Suite:
    """The suite of that file; raises UsageError that says what is wrong and where."""
    suite = read_suite(path)
    for run in suite.run:
        for problem in _wrong_options(run):
            where = f"{printable(str(path))}: run {run.name}"
            raise UsageError(f"{where}: {shortened(printable(problem), 500)}")
    return suite


def _wrong_options(run: Run) -> Iterator[str]:
    kind, options = _KINDS[run.scenario], run.options
    known = sorted(({*text_options(kind), *_OTHERS}) - GIVEN)
    unknown = [name for name in options if name not in known]
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=2) or known
        yield f"no option {name} of {run.scenario}; expected one of {', '.join(near)}"
    if unknown:
        return
    texts: dict[str, object] = {
        **default_texts(kind),
        **{"metrics_host": "127.0.0.1", "metrics_port": "auto", "api_key": ""},
        "dcgm_url": "http://127.0.0.1:9400/metrics",
        **{name.replace("-", "_"): value for name, value in options.items()},
        "gpu": [options["gpu"]] if "gpu" in options else [],
        # their URLs are not known here
        "backends": ",".join(f"{name}=http://127.0.0.1" for name in run.backends),
        SCENARIOS[run.scenario].replace("-", "_"): ",".join(map(str, run.levels)),
        "prompt_tokens": str(run.prompt_tokens),
        "output_tokens": str(run.output_tokens),
    }
    try:
        read_settings(run.scenario, texts, kind)
    except UsageError as error:
        yield str(error)
