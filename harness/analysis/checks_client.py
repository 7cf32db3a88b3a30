"""Findings about the load generator: it was the limit, stood still, or was near another one."""

from __future__ import annotations

from harness.analysis.client_samples import STALL_S, TIME_WAIT_S
from harness.analysis.summary_types import CellFigures
from harness.kv.units import counted
from harness.manifest import Manifest
from harness.records import Finding, Scalar

#: Standing still for less than this share of the window moves no p99 by much.
STALL_SHARE = 0.01
#: Beyond this share the level measured something else than the server.
FROZEN_SHARE = 0.05
#: A standstill this long is worth a warning in a window of any length.
_LONG_STALL_S = 0.5
#: A standstill this long is worth saying: the largest figures may be the client's.
NOTED_STALL_S = 0.15
#: From this share of the ports on a new connection may find none free.
PORTS_SHARE = 0.8
_OWN_MACHINE = "Give it a core of its own or another machine"
_SPREAD = "more processes (--processes N) or machines (--master, --worker)"


def stalled(figures: CellFigures) -> bool:
    """Whether the client stood still for long enough to bias the level's figures."""
    stood, share = figures.client.stood_still_s, _share(figures)
    return stood > STALL_S and (share > STALL_SHARE or stood > _LONG_STALL_S)


def frozen(figures: CellFigures) -> bool:
    """Whether it stood still for so long that the level gives no verdict."""
    return figures.client.stood_still_s > STALL_S and _share(figures) > FROZEN_SHARE


def client_findings(figures: CellFigures, manifest: Manifest) -> list[Finding]:
    """Findings about the load generator at one level."""
    found: list[Finding] = []
    if figures.client.bound:
        found.append(
            Finding(
                code="client_bound",
                severity="invalid",
                text=f"The load generator was the limit: {'; '.join(figures.client.bound_by)}.",
                remedy=f"{_OWN_MACHINE}, or {_SPREAD}; this level gives no verdict.",
                cell=figures.cell,
            )
        )
    if stalled(figures):
        found.append(_stood_still(figures))
    elif figures.client.stood_still_s > NOTED_STALL_S:
        found.append(_paused(figures))
    return found + _calibration(figures, manifest) + _ports(figures, manifest)


def _stood_still(figures: CellFigures) -> Finding:
    no_verdict = frozen(figures)
    text = (
        f"The load generator stood still for {figures.client.stood_still_s:.2f} s "
        f"({_share(figures) * 100:.1f} % of the window), so TTFT, ITL and throughput are not "
        "trusted"
    )
    if no_verdict:
        text += f" and the level gives no verdict (limit {FROZEN_SHARE * 100:.0f} %)"
    return Finding(
        code="client_stood_still",
        severity="invalid" if no_verdict else "warning",
        text=f"{text}.",
        remedy=f"{_OWN_MACHINE}, keep it from being stopped or suspended, and repeat the level.",
        cell=figures.cell,
    )


def _paused(figures: CellFigures) -> Finding:
    return Finding(
        code="client_stood_still",
        severity="note",
        text=f"The load generator stood still for {figures.client.stood_still_s:.2f} s "
        f"({_share(figures) * 100:.1f} % of the window): too short to move a p99, but the "
        "largest TTFT and ITL may be its own.",
        remedy="Nothing to do, unless the largest figures matter: then repeat the level.",
        cell=figures.cell,
    )


def token_events_per_s(figures: CellFigures) -> float | None:
    """Stream events that each process of the load had to take in per second."""
    tokens, each = figures.throughput.output_tokens_per_s, figures.latency.tokens_per_event
    if tokens is None:
        return None
    return tokens / (each or 1.0) / max(figures.client.workers, 1)


def _calibration(figures: CellFigures, manifest: Manifest) -> list[Finding]:
    """A level faster than what the client was found to be right at on its machine."""
    ceiling = _number(manifest.environment.get("calibrated_tokens_per_s"))
    rate = token_events_per_s(figures)
    if ceiling is None or rate is None or rate <= ceiling:
        return []
    each = " in each process" if figures.client.workers > 1 else ""
    return [
        Finding(
            code="beyond_calibration",
            severity="warning",
            text=f"{rate:,.0f} token events/s{each} are more than the {ceiling:,.0f} up to which "
            "this client was found to be right to 1 ms on this machine.",
            remedy=f"Use {_SPREAD}, or see with kvknee calibrate --streams whether it can do more.",
            cell=figures.cell,
        )
    ]


def _ports(figures: CellFigures, manifest: Manifest) -> list[Finding]:
    """New connections that come faster than the ports of the closed ones become free."""
    ports = _number(manifest.environment.get("ephemeral_ports"))
    now = figures.client.time_wait_peak or 0.0
    later = figures.client.time_wait_expected or 0.0
    if not ports or max(now, later) <= PORTS_SHARE * ports:
        return []
    held = counted(round(now), "closed connection")
    text = f"{held} held a port each, of {ports:,.0f} that a machine has for one server"
    if later > now:
        text += f"; at this rate it will be {later:,.0f} after {TIME_WAIT_S:.0f} s"
    return [
        Finding(
            code="ports_run_out",
            severity="warning" if now > PORTS_SHARE * ports else "note",
            text=f"{text}. Then connections fail.",
            remedy="Let the server or proxy keep connections alive, widen "
            "net.ipv4.ip_local_port_range, or load from more machines (--master, --worker).",
            cell=figures.cell,
        )
    ]


def _share(figures: CellFigures) -> float:
    length = figures.window.length_s
    return figures.client.stood_still_s / length if length else 0.0


def _number(value: Scalar) -> float | None:
    """A scalar of the manifest as a positive number; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value > 0 else None
