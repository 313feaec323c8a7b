"""The status page as text: what it says, what it escapes, what it allows."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html.parser
import re
import time
from pathlib import Path

import pytest

from dih20.serve.gpu_memory import GpuMemory, parse_gpu_memory, read_gpu_memory
from dih20.serve.page import HEADERS, Status, render
from dih20.serve.page.rendering import WORDS, duration
from dih20.serve.rate import Rate

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00"


class Outline(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.by_id: dict[str, str] = {}
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self._open = [found["id"]] if found.get("id") else []  # type: ignore[list-item]

    def handle_data(self, data: str) -> None:
        for key in self._open:
            self.by_id[key] = self.by_id.get(key, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._open = []


def outline(status: Status) -> Outline:
    found = Outline()
    found.feed(render(status))
    return found


@pytest.mark.parametrize("state", [*WORDS, "a state of tomorrow"])
def test_every_state_has_a_page_that_names_it(state: str) -> None:
    page = outline(Status(state=state))
    assert page.by_id["state"] == WORDS.get(state, state)


@pytest.mark.parametrize(
    "field", ["model", "progress_line", "reason", "last_error", "gate", "gate_evidence", "state"]
)
def test_text_from_outside_stays_text(field: str) -> None:
    values = {"state": "failed"} | {field: HOSTILE}
    page = outline(Status(**values))  # type: ignore[arg-type]
    tags = [tag for tag, _ in page.tags]
    assert (tags.count("script"), tags.count("img")) == (1, 0)


def test_identities_stay_text() -> None:
    page = outline(Status(state="ready", identities={HOSTILE: HOSTILE}))
    assert [tag for tag, _ in page.tags].count("script") == 1


def test_the_policy_allows_the_inline_parts_of_the_page_and_nothing_else() -> None:
    page = render(Status(state="ready", last_error=HOSTILE))
    for name in ("style", "script"):
        inline = re.findall(rf"<{name}>(.*?)</{name}>", page, re.S)
        assert len(inline) == 1
        digest = base64.b64encode(hashlib.sha256(inline[0].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in HEADERS["content-security-policy"]
    assert "default-src 'none'" in HEADERS["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_the_page_loads_nothing_from_elsewhere_and_is_light() -> None:
    page = outline(Status(state="ready"))
    for tag, attributes in page.tags:
        for name in ("src", "href"):
            target = attributes.get(name)
            assert target is None or re.fullmatch(r"data:,|[a-z.]+", target), (tag, target)
        assert "style" not in attributes, tag
    assert len(render(Status(state="ready"))) < 16_000


def test_the_bar_shows_where_the_start_is() -> None:
    page = outline(Status(state="warming", fraction=0.374, progress_line="layer 3 of 8"))
    ids = {a["id"]: a for _, a in page.tags if a.get("id")}
    assert ids["bar"]["aria-valuenow"] == "37"
    assert [ids[f"phase-{name}"]["class"] for name in ("starting", "loading", "warming")] == [
        "done",
        "done",
        "now",
    ]
    assert ids["phase-warming"]["aria-current"] == "step"
    assert ids["phase-gating"]["class"] == "next"
    assert "hidden" not in ids["loading"]
    assert page.by_id["progress-line"] == "layer 3 of 8"


@pytest.mark.parametrize("fraction", [None, -1.0, 7.0])
def test_a_fraction_that_makes_no_sense_draws_no_nonsense(fraction: float | None) -> None:
    page = outline(Status(state="loading", fraction=fraction))
    bar = next(a for _, a in page.tags if a.get("id") == "bar")
    assert bar.get("aria-valuenow") in (None, "0", "100")


def test_a_ready_server_shows_no_bar_and_its_numbers() -> None:
    page = outline(
        Status(
            state="ready",
            running=3,
            waiting=2,
            queue_limit=64,
            tokens_per_s=123.46,
            gate="passed",
            gate_evidence="4 of 4 questions",
            gpus=(GpuMemory(index=5, used_bytes=48 << 30, total_bytes=96 << 30),),
            last_error="rank 1 took long",
            last_error_age_s=65,
        )
    )
    assert "hidden" in next(a for _, a in page.tags if a.get("id") == "loading")
    assert page.by_id["running"] == "3"
    assert page.by_id["waiting"] == "2 of 64"
    assert page.by_id["tokens-per-s"] == "123.5"
    assert page.by_id["gate"] == "Known answers: passed (4 of 4 questions)"
    assert page.by_id["last-error"] == "1 min 5 s ago: rank 1 took long"
    meter = next(a for tag, a in page.tags if tag == "meter")
    assert (meter["value"], meter["aria-label"]) == ("50", "GPU 5 memory")


def test_a_failed_server_says_why_first() -> None:
    page = outline(Status(state="failed", reason="rank 2 ended with exit code 3"))
    assert page.by_id["summary"] == "rank 2 ended with exit code 3"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (0.44, "0.4 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (7620, "2 h 7 min")],
)
def test_lengths_of_time_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_gpu_memory_is_read_in_mib_and_odd_lines_are_left_out() -> None:
    text = "0, 1024, 97871\n1, [N/A], 97871\nwarning: infoROM is corrupted\n7, 0, 97871\n"
    assert parse_gpu_memory(text) == (
        GpuMemory(index=0, used_bytes=1 << 30, total_bytes=97871 << 20),
        GpuMemory(index=7, used_bytes=0, total_bytes=97871 << 20),
    )


def test_the_rate_follows_the_window_and_falls_to_zero() -> None:
    rate = Rate(window_s=10.0)
    assert rate.per_s(5.0) == 0.0
    for tick in range(100, 200):
        rate.add(5, tick / 10)
    assert rate.per_s(20.0) == pytest.approx(50, rel=0.15)
    assert rate.per_s(31.0) == 0.0
    rate.add(7, 1000.0)
    assert 0 < rate.per_s(1000.0) <= 7


@pytest.mark.parametrize(
    ("script", "found"),
    [("echo '3, 2, 4'", 1), ("exec sleep 60", 0), ("echo '3, 2, 4'; exit 9", 1), ("exit 9", 0)],
)
def test_nvidia_smi_is_asked_with_a_deadline(script: str, found: int, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    started = time.monotonic()
    memory = asyncio.run(read_gpu_memory(str(program), timeout_s=0.3 if "sleep" in script else 30))
    assert len(memory) == found
    assert time.monotonic() - started < 20


def test_without_nvidia_smi_there_is_no_gpu() -> None:
    assert asyncio.run(read_gpu_memory("no-such-nvidia-smi")) == ()
