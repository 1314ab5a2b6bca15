"""What Prometheus sees of the service. Every application has a registry of its own, so several fit into one process."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The counters of one application."""

    def __init__(self, depth: Callable[[], float], items: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "vrag_search_requests",
            "Requests by endpoint and status.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "vrag_search_request_seconds",
            "Seconds from the request to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batches = Histogram(
            "vrag_search_batch_queries", "Queries run together.", buckets=BATCH_SIZES, registry=self.registry
        )
        self.reloads = Counter(
            "vrag_search_reloads", "Swaps of the index by outcome.", ["outcome"], registry=self.registry
        )
        waiting = Gauge("vrag_search_waiting_queries", "Queries in the queue.", registry=self.registry)
        waiting.set_function(depth)
        served = Gauge("vrag_search_index_items", "Items that are being served.", registry=self.registry)
        served.set_function(items)


class Measure:
    """Count and time every request under the template of its endpoint, never under its path: ids are without number."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started, status = time.perf_counter(), 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            self._metrics.requests.labels(route, method, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
