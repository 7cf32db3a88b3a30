"""NVIDIA's own tool, asked about the GPUs of this machine."""

from __future__ import annotations

import shutil
import subprocess

_LIMIT_S = 10.0


def query_gpus(fields: str) -> str | None:
    """What ``nvidia-smi`` prints of these comma-separated fields, a line for each GPU.

    Its figures come without units, memory in MiB. None where the tool is missing, fails or hangs.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
