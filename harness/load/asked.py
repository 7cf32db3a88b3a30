"""From a parsed command line to the settings of a run, a new one or one that goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.load.options import default_texts, option_values
from harness.load.resume import read_resumption, resumed_options
from harness.load.settings import LoadSettings, read_settings
from harness.load.workload import AskKind


def asked_settings(scenario: str, namespace: object, kind: AskKind) -> LoadSettings:
    """Validate what was asked; with ``--resume`` what the run itself was asked stands in.

    Raises UsageError or RunDirError, one clear line.
    """
    values = option_values(namespace, kind)
    if not values.get("resume"):
        return read_settings(scenario, values, kind)
    resume = read_resumption(Path(str(values["resume"])), scenario)
    values = resumed_options(values, default_texts(kind), resume.manifest)
    settings = read_settings(scenario, values, kind)
    return replace(settings, resume=resume, results_dir=resume.path.parent)
