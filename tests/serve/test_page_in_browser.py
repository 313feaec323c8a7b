"""The status page of real servers, as a browser shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.browser import Browser
from tests.serve.exchange import post
from tests.serve.running import Server

HOSTILE = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
# the lowest contrast of any text on the page with its ground, by the rule of WCAG 2
CONTRAST = """(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll("main *, footer *")].filter((e) => e.innerText);
  return Math.min(...texts.map((e) => {
    const [low, high] = [light(getComputedStyle(e).color), ground].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
})()"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    chromium.scripts(run=True)
    chromium.size(1000, 1000)
    return chromium


def test_a_page_opened_while_loading_follows_to_ready_without_a_reload(
    browser: Browser, tmp_path: Path
) -> None:
    """The model's name is hostile, and stays text."""
    seen = tmp_path / "seen"
    loading = {"start": ["reading the weights", f"wait for {seen}"]}
    with Server(tmp_path, ready=False, engine_options=loading, served_name=HOSTILE) as server:
        server.wait_until(lambda: server.json("/status.json")["state"] == "loading", "loading")
        browser.open(server.url)
        browser.wait_for("document.getElementById('state').textContent.trim() === 'Loading'")
        browser.evaluate("window.mark = 'not loaded again'")
        browser.wait_for(
            "document.getElementById('progress-line').textContent.trim() === 'reading the weights'"
        )
        assert browser.evaluate("document.querySelector('[aria-current=step]').id") == (
            "phase-loading"
        )
        assert browser.evaluate("document.getElementById('bar').ariaValueNow") == "50"
        assert browser.evaluate("document.querySelector('.fill').getBoundingClientRect().width") > 9
        seen.touch()
        browser.wait_for("document.getElementById('state').textContent.trim() === 'Ready'", 60)
        assert browser.evaluate("document.getElementById('loading').checkVisibility()") is False
        assert browser.evaluate("document.title").startswith("Ready")
        assert browser.evaluate("document.querySelector('h1').textContent") == HOSTILE
        assert browser.evaluate("document.images.length") == 0
        assert browser.text("gate").startswith("Known answers: passed")
        assert browser.evaluate("window.mark") == "not loaded again"
        assert all(url.startswith((server.url, "data:")) for url in browser.requests)
        assert browser.complaints == []


def test_the_page_shows_requests_and_tokens_as_they_run(browser: Browser, idle: Server) -> None:
    browser.open(idle.url)
    assert browser.text("running") == "0"
    body = {"model": "canary", "prompt": "1 2 3", "max_tokens": 8000}
    with idle.connect() as raw:
        raw.sendall(post("/v1/completions", json.dumps(body).encode()))
        browser.wait_for("document.getElementById('running').textContent === '1'")
        browser.wait_for("Number(document.getElementById('tokens-per-s').textContent) > 1")
        assert browser.text("last-step").endswith("ago")
    browser.wait_for("document.getElementById('running').textContent === '0'")


def test_a_failed_server_shows_why(browser: Browser, tmp_path: Path) -> None:
    options = {"start": ["the weights of <b>layer 7</b> are not there", "exit 3"]}
    with Server(
        tmp_path, ready=False, engine_options=options, deadlines={"failed_linger_s": 60}
    ) as server:
        server.wait_until(lambda: server.json("/status.json")["state"] == "failed", "failure")
        server.wait_until(lambda: "Failed" in server.get("/")[1], "the page to say so")
        browser.open(server.url)
        assert browser.text("state") == "Failed"
        for place in ("summary", "last-error"):
            assert "exit code 3" in browser.text(place)
        assert "<b>layer 7</b> are not there" in browser.text("last-error")
        server.process.terminate()
        server.wait_exit()
        browser.wait_for("document.getElementById('unreachable').checkVisibility()")
        assert browser.text("unreachable").startswith("No answer from this server since")
        assert browser.text("state") == "Failed"


def test_without_scripts_the_page_says_the_same(browser: Browser, idle: Server) -> None:
    browser.scripts(run=False)
    browser.open(idle.url)
    assert browser.text("state") == "Ready"
    assert browser.text("waiting") == "0 of 4"
    assert browser.text("gate").startswith("Known answers: passed")
    assert browser.evaluate("document.querySelector('meta[http-equiv=refresh]').content") == "5"


@pytest.mark.parametrize("width", [320, 360, 768])
def test_the_page_fits_a_small_screen(browser: Browser, idle: Server, width: int) -> None:
    browser.size(width, 700)
    browser.open(idle.url)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    smallest = "[...document.querySelectorAll('main *')].filter((e) => e.innerText)"
    smallest += ".map((e) => parseFloat(getComputedStyle(e).fontSize))"
    assert browser.evaluate(f"Math.min(...{smallest})") >= 14


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(browser: Browser, idle: Server, scheme: str) -> None:
    browser.scheme(scheme)
    browser.open(idle.url)
    assert browser.evaluate(CONTRAST) >= 4.5


def test_names_for_those_who_hear_the_page(browser: Browser, idle: Server) -> None:
    browser.open(idle.url)
    nodes = browser.accessible()
    roles = [role for role, _ in nodes]
    assert roles.count("main") == 1
    assert ("heading", "canary") in nodes
    assert ("status", "") in nodes or "status" in roles
    assert all(name for role, name in nodes if role in ("meter", "progressbar", "link", "table"))
