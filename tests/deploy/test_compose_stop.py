"""What the compose file says about stopping; tests/docker shows it."""

import re
from pathlib import Path

COMPOSE = (Path(__file__).resolve().parents[2] / "docker-compose.yml").read_text()


def section(name: str) -> str:
    """A service or an anchor: its lines, up to the next one."""
    found = re.search(rf"^( *){name}:.*\n(?:\1 +.*\n|\s*\n|\1 *#.*\n)+", COMPOSE, re.MULTILINE)
    assert found, name
    return found.group()


def test_the_coordinator_stops_before_all_that_it_needs() -> None:
    """In the order of a stop, what is depended on comes last."""
    assert "depends_on: [redis, prefill, decode, colocated]" in section("coordinator")
    for other in ("redis", "prefill", "decode", "colocated"):
        assert "depends_on" not in section(other)
    assert section("x-worker").count("depends_on:\n    check-model:\n") == 1


def test_a_service_that_starts_hears_sigterm() -> None:
    """Process 1 ignores signals that it has no handler for yet."""
    assert "init: true" in section("x-service")
    assert "<<: *service" in section("x-worker")
    for name in ("redis", "coordinator", "prefill", "decode", "colocated"):
        assert re.search(r"<<: \*(service|worker)\n", section(name))
