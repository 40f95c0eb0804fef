"""What became of a request, told by the real system: over HTTP, and in baton top."""

import sys

import httpx
import pytest

from tests.e2e.forks import completed
from tests.e2e.stack import Stack, environment

MODEL = "per_expert"


def test_a_finished_requests_timeline_adds_up(baton: Stack) -> None:
    with httpx.Client(base_url=baton.url, timeout=30.0) as http:
        body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
        answer = http.post("/v1/completions", json=body).raise_for_status().json()
        told = http.get(f"/v1/requests/{answer['id']}").raise_for_status().json()
        listed = http.get("/v1/requests", params={"limit": 5}).raise_for_status().json()
        unknown = http.get("/v1/requests/nobody-asked-this")
    assert told["state"] == "finished"
    assert told["prompt_tokens"] == 3
    assert told["completion_tokens"] == answer["usage"]["completion_tokens"] == 4
    names = [stage["name"] for stage in told["stages"]]
    assert names == ["queue", "prefill", "handoff", "decode"]
    total = sum(stage["duration_s"] for stage in told["stages"])
    assert total == pytest.approx(told["duration_s"], abs=1e-3)
    assert [each["id"] for each in listed["data"]][:1] == [told["id"]]
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"]


def test_the_page_is_there_and_fetches_nothing_from_elsewhere(baton: Stack) -> None:
    page = httpx.get(f"{baton.url}/", timeout=10.0).raise_for_status()
    assert page.headers["content-type"].startswith("text/html")
    assert "connect-src 'self'" in page.headers["content-security-policy"]


def test_top_shows_the_pools(baton: Stack) -> None:
    command = [sys.executable, "-m", "deploy.cli", "top", "--once", "--interval", "0.2"]
    done = completed([*command, "--url", baton.url], environment(), 60.0)
    assert done.returncode == 0, done.stderr
    assert "prefill" in done.stdout
    assert "decode" in done.stdout
