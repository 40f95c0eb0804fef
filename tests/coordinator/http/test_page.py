"""The page's files, as they are sent."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from coordinator.http.routes_page import FOLDER, PATHS
from tests.coordinator.fake_core import FakeCore

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def client(says: Callable[..., FakeCore], client_of: Callable[..., httpx.AsyncClient]):
    return client_of(says())


async def test_every_file_comes_with_a_strict_policy(client: httpx.AsyncClient) -> None:
    for path in PATHS:
        answer = await client.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_the_page_refers_to_nothing_else(client: httpx.AsyncClient) -> None:
    html = (await client.get("/")).text
    references = re.findall(r'(?:href|src)="([^"]+)"', html)
    served = {"/" + name for name in references if not name.startswith(("#", "data:"))}
    for path in PATHS:
        imports = re.findall(r'^import .* from "\./([^"]+)"', (await client.get(path)).text, re.M)
        served |= {f"/page/{name}" for name in imports}
    assert served == PATHS - {"/"}
    for path in PATHS:
        text = (await client.get(path)).text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|@import|url\(|innerHTML|eval\(", text)
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", html), "the policy forbids inline"


async def test_the_page_is_no_part_of_the_api(client: httpx.AsyncClient) -> None:
    assert not PATHS & set((await client.get("/openapi.json")).json()["paths"])


def test_the_files_are_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["coordinator"]
    package = FOLDER.parent.parent
    packaged = {path for pattern in patterns for path in package.glob(pattern)}
    assert packaged == set(FOLDER.iterdir())
