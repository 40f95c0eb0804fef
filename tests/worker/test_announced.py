"""A worker to which a handoff was announced launches no step ahead, so that its sequence joins the
next one."""

import pytest

from tests.worker.test_shared_steps import Site
from transport.wire.messages import ExpectHandoff


def launched(site: Site) -> int:
    return len(site.worker._launches)


def test_no_step_is_launched_ahead_while_a_handoff_is_expected() -> None:
    site = Site(awake_s=0.1)
    site.decode(0.01)
    assert launched(site) == 1, "one is computed, and the next round launches another one"
    before = len(site.group.heard)
    site.worker.handle(ExpectHandoff())
    site.worker.step()
    assert (len(site.group.heard), site.worker.wait_s()) == (before, 0.0)
    site.device_done = True
    site.worker.step()
    assert len(site.group.heard) == before + 1


@pytest.mark.parametrize("num_expected", [1, 3])
def test_it_launches_ahead_again_when_all_have_come_or_none_does(num_expected: int) -> None:
    site = Site(awake_s=0.1)
    site.decode(0.01)
    for _ in range(num_expected):
        site.worker.handle(ExpectHandoff())
    for _ in range(num_expected):
        assert site.worker.awake_s > 0
        site.worker._orders._has_come()
    assert site.worker.awake_s == 0
    site.worker.handle(ExpectHandoff())
    assert site.worker.awake_s > 0
    site.now += 0.2
    assert site.worker.awake_s == 0
    site.worker.handle(ExpectHandoff())
    site.worker._orders._has_come()
    assert site.worker.awake_s == 0, "those that have not come are forgotten"
