"""The compose file and what explains it: every setting is in .env.example, and no other is."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()
BY_THE_EDGE = {"BATON_API_KEYS"}
"""Explained where keys are: docs/security.md."""

requirements = runpy.run_path(str(ROOT / "deploy/images/requirements.py"))["requirements"]


def test_every_setting_is_explained() -> None:
    used = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", COMPOSE))
    explained = set(re.findall(r"^([A-Z_]+)=", EXAMPLE, re.MULTILINE))
    assert used - BY_THE_EDGE == explained


def test_the_defaults_are_the_examples() -> None:
    defaults = dict(re.findall(r"(?<!\$)\$\{([A-Z_]+):-([^}]+)\}", COMPOSE))
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE))
    assert {name: example[name] for name in defaults} == defaults


@pytest.mark.parametrize("name", ["REDIS_PASSWORD", "BATON_CHANNEL_SECRET"])
def test_a_secret_has_no_default(name: str) -> None:
    assert re.search(rf"^{name}=$", EXAMPLE, re.MULTILINE)
    assert set(re.findall(rf"\$\{{{name}(.)", COMPOSE)) == {":"}
    assert f"${{{name}:-" not in COMPOSE


def test_only_the_coordinator_publishes_a_port() -> None:
    assert COMPOSE.count("ports:") == 1
    assert "privileged" not in COMPOSE


def test_the_coordinators_image_has_no_torch() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    front = {line.partition("==")[0] for line in requirements(pyproject, [])}
    worker = {line.partition("==")[0] for line in requirements(pyproject, ["worker"])}
    assert not front & {"torch", "triton", "safetensors"}
    assert worker - front == {"torch", "triton", "safetensors"}
    with pytest.raises(KeyError):
        requirements(pyproject, ["no such extra"])
