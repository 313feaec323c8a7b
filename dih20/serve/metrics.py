"""Numbers for /metrics. What changes per token is a plain int; Prometheus reads it when asked."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

PREFIX = "dih20_serve"
_PHASES = ("starting", "loading", "warming", "gating", "ready", "draining", "failed", "stopped")
_OVERHEAD_NS = tuple(
    int(us * 1000)
    for us in (50, 100, 150, 200, 300, 400, 600, 800, 1000, 1500, 2000, 3000, 5000, 10000)
)
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Tally:
    """A histogram of nanoseconds that costs one bisect to feed."""

    def __init__(self, bounds_ns: tuple[int, ...] = _OVERHEAD_NS) -> None:
        self._bounds = bounds_ns
        self._counts = [0] * (len(bounds_ns) + 1)
        self._sum_ns = 0

    def add(self, ns: int) -> None:
        self._counts[bisect_left(self._bounds, ns)] += 1
        self._sum_ns += ns

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        sums = list(accumulate(self._counts))
        bounds = [str(ns / 1e9) for ns in self._bounds] + ["+Inf"]
        buckets = list(zip(bounds, sums, strict=True))
        return HistogramMetricFamily(
            name, documentation, buckets=buckets, sum_value=self._sum_ns / 1e9
        )


class Metrics(Collector):
    """All numbers of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.overhead = Tally()
        self.prompt_tokens = self.answer_tokens = 0
        self.finished = self.refused = self.failed = self.cancelled = 0
        self.phase: Callable[[], str] = lambda: "starting"
        self.running: Callable[[], int] = lambda: 0
        self.waiting: Callable[[], int] = lambda: 0
        self.step_age: Callable[[], float] = lambda: 0.0
        self.gpu_memory: Callable[[], list[tuple[int, int, int]]] = list
        self.responses = Counter(
            f"{PREFIX}_responses", "Responses by route and status", ("route", "status"),
            registry=self.registry,
        )  # fmt: skip
        self.step_time = Histogram(
            f"{PREFIX}_step_seconds", "Time of one engine step", buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.first_token = Histogram(
            f"{PREFIX}_first_token_seconds", "From request to first token", buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.request_time = Histogram(
            f"{PREFIX}_request_seconds", "From request to end of answer", buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """Give the plain numbers as Prometheus wants them."""
        outcomes = CounterMetricFamily(
            f"{PREFIX}_requests", "Requests by outcome", labels=["outcome"]
        )
        for outcome in ("finished", "refused", "failed", "cancelled"):
            outcomes.add_metric([outcome], getattr(self, outcome))
        yield outcomes
        yield CounterMetricFamily(f"{PREFIX}_prompt_tokens", "Prompt tokens", self.prompt_tokens)
        yield CounterMetricFamily(
            f"{PREFIX}_answer_tokens", "Answer tokens, the gate's among them", self.answer_tokens
        )
        yield GaugeMetricFamily(f"{PREFIX}_running", "Requests in the engine", self.running())
        yield GaugeMetricFamily(f"{PREFIX}_waiting", "Requests that wait", self.waiting())
        yield GaugeMetricFamily(
            f"{PREFIX}_step_age_seconds",
            "Age of the last step while work is pending",
            self.step_age(),
        )
        yield GaugeMetricFamily(f"{PREFIX}_tasks", "asyncio tasks", len(asyncio.all_tasks()))
        phases = GaugeMetricFamily(f"{PREFIX}_phase", "1 for the phase it is in", labels=["phase"])
        now = self.phase()
        for phase in _PHASES:
            phases.add_metric([phase], float(phase == now))
        yield phases
        for kind, place in (("used", 1), ("all", 2)):
            memory = GaugeMetricFamily(
                f"{PREFIX}_gpu_memory_{kind}_bytes", f"GPU memory, {kind}", labels=["rank"]
            )
            for row in self.gpu_memory():
                memory.add_metric([str(row[0])], row[place])
            yield memory
        yield self.overhead.family(
            f"{PREFIX}_gateway_overhead_seconds", "From engine emission to socket write, per token"
        )
