"""The limit on open files: raised where it may be, refused with its numbers where not."""

import resource

import pytest

from coordinator.http.server.open_files import SPARE_FILES, allow_open_files


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (soft, hard) limits over time; the last pair holds."""
    history = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: history[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: history.append(pair))
    return history


def test_a_soft_limit_is_raised_as_far_as_needed(limits: list[tuple[int, int]]) -> None:
    assert allow_open_files("max_open", 3000) == 3000
    assert limits[-1] == (3000 + SPARE_FILES, 4096)


@pytest.mark.parametrize("limit", [(8192, 8192), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)])
def test_a_limit_that_is_high_enough_stays(
    limits: list[tuple[int, int]], limit: tuple[int, int]
) -> None:
    limits.append(limit)
    allow_open_files("max_open", 3000)
    assert limits[-1] == limit


@pytest.mark.parametrize(
    ("soft", "connections"),
    [(4000, 4000 - SPARE_FILES), (8192, 6000), (resource.RLIM_INFINITY, 6000)],
)
def test_what_is_spare_is_not_for_connections(
    limits: list[tuple[int, int]], soft: int, connections: int
) -> None:
    limits.append((soft, resource.RLIM_INFINITY))
    assert allow_open_files("max_open", 3000) == connections


def test_an_endless_hard_limit_is_no_obstacle(limits: list[tuple[int, int]]) -> None:
    limits.append((1024, resource.RLIM_INFINITY))
    allow_open_files("max_open", 100_000)
    assert limits[-1] == (100_000 + SPARE_FILES, resource.RLIM_INFINITY)


def test_a_hard_limit_that_is_too_low_is_named_with_the_setting(
    limits: list[tuple[int, int]],
) -> None:
    with pytest.raises(ValueError, match=r"max_open: 16384 needs 16896 open files.* have 4096"):
        allow_open_files("max_open", 16_384)
    assert len(limits) == 1
