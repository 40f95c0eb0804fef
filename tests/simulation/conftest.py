"""Prompts are short here, so pulls cost little and short beginnings count: else few were reused."""

from collections.abc import Iterator

import pytest

from coordinator.core.placement import reuse


@pytest.fixture(autouse=True, scope="module")
def _short_prompts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reuse, "PULL_LEN", 0)
        patch.setattr(reuse, "LONG_SHARED_LEN", 32)
        yield
