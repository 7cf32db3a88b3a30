"""A Prometheus server's HTTP API, as far as finding it needs one."""

from __future__ import annotations

from typing import Any

import httpx

URL = "http://127.0.0.1:9999"
OURS = {"paged": "http://127.0.0.1:8000/metrics"}


def ok(data: object) -> httpx.Response:
    return httpx.Response(200, json={"status": "success", "data": data})


def target(url: str, health: str = "up", **labels: str) -> dict[str, Any]:
    known = {"job": "llm", "instance": url.split("/")[2]}
    return {"scrapeUrl": url, "health": health, "labels": known | labels}


def serving(*targets: dict[str, Any], version: bool = True) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/targets"):
            return ok({"activeTargets": list(targets)})
        if request.url.path.endswith("/buildinfo") and version:
            return ok({"version": "2.42.0"})
        return httpx.Response(404, text="404 page not found")

    return httpx.MockTransport(answer)
