"""What theory says of each backend of a run: of its kept model config, else of what it stated."""

from __future__ import annotations

from collections.abc import Mapping

from harness.analysis.reconcile_theory import KvTheory, config_theory
from harness.errors import UsageError
from harness.manifest import Manifest
from harness.rundir import RunDir


def run_theories(
    run: RunDir,
    manifest: Manifest,
    given: Mapping[str, object] | None = None,
    kv_dtype: str | None = None,
    tp: int = 1,
) -> dict[str, KvTheory]:
    """Backend name -> theory, where a config is known.

    ``given`` is a config that counts for every backend; raises UsageError when it cannot be
    computed. One that was kept and cannot be is passed over.
    """
    found: dict[str, KvTheory] = {}
    for info in manifest.backends:
        if given is not None:
            found[info.name] = config_theory(given, info, kv_dtype, tp)
            continue
        config = run.model_config(info.name)
        if config is None:
            continue
        try:
            found[info.name] = config_theory(config, info, kv_dtype, tp)
        except UsageError:
            continue
    return found
