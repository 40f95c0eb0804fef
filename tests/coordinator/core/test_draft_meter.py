"""What heartbeats tell of drafts: their growth, and what came of late."""

from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.core.hub import Hub
from coordinator.core.observer import Observer
from coordinator.core.request_report import to_record
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.meters import DRAFTS_WINDOW_S, DraftMeter
from coordinator.record.redis_link import Damage
from telemetry.metrics import Metrics
from tests.coordinator.desk import Desk
from tests.coordinator.site import EXPORT, FAST
from transport.wire.messages import Hello, TokenOut, Tokens
from transport.wire.reports import DraftCounts, WorkerGauges

VLLM = "vllm:spec_decode_num"


class Told:
    """An observer's metrics, from heartbeats of workers."""

    def __init__(self) -> None:
        self.metrics = Metrics("m")
        self.observer = Observer(self.metrics, Mock(), "c1")

    def heartbeat(self, desk: Desk, instance: str, counts: DraftCounts, now: float) -> None:
        worker = desk.registry.require(instance)
        worker.gauges = WorkerGauges(1, 1, drafts=counts)
        worker.drafts.note(counts, now)
        self.observer.workers.counted(worker)
        self.observer.workers.heartbeat(worker)

    def samples(self) -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(self.metrics.render().decode())
        return {
            (sample.name, sample.labels.get("position", "")): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }


def test_metrics_grow_by_what_each_heartbeat_brings_and_never_fall() -> None:
    desk, told = Desk(), Told()
    told.heartbeat(desk, "d-1", DraftCounts(100, (80, 80), (60, 30), 2), 0.0)
    assert told.samples()["baton_sequence_steps_total", ""] == 0, "of an earlier coordinator"
    told.heartbeat(desk, "d-1", DraftCounts(110, (88, 84), (66, 32), 1), 1.0)
    found = told.samples()
    assert found["baton_sequence_steps_total", ""] == 10
    assert found["baton_sequence_steps_with_drafts_total", ""] == 8
    assert found["baton_drafts_verified_per_position_total", "1"] == 4
    assert found["baton_worker_drafts", ""] == 1
    assert found[f"{VLLM}_drafts_total", ""] == 8
    assert found[f"{VLLM}_draft_tokens_total", ""] == 12
    assert found[f"{VLLM}_accepted_tokens_total", ""] == 8
    assert found[f"{VLLM}_accepted_tokens_per_pos_total", "0"] == 6
    assert found[f"{VLLM}_accepted_tokens_per_pos_total", "1"] == 2
    desk.life.worker_lost("d-1")
    desk.join("d-1")
    told.heartbeat(desk, "d-1", DraftCounts(), 2.0)
    told.heartbeat(desk, "d-1", DraftCounts(5, (5,), (5,), 1), 3.0)
    found = told.samples()
    assert found["baton_sequence_steps_total", ""] == 15
    assert found["baton_drafts_accepted_total", ""] == 13


def test_counts_that_fall_are_no_growth() -> None:
    meter = DraftMeter()
    meter.note(DraftCounts(10, (10,), (5,)), 0.0)
    meter.note(DraftCounts(4, (), ()), 1.0)
    assert meter.growth == DraftCounts()


def test_a_worker_shows_the_last_seconds() -> None:
    meter = DraftMeter()
    assert (meter.num_drafts, meter.tokens_per_step, meter.acceptance) == (0, None, ())
    meter.note(DraftCounts(), 0.0)
    meter.note(DraftCounts(100, (100, 100), (0, 0), 2), 1.0)
    assert (meter.tokens_per_step, meter.acceptance) == (1.0, (0.0, 0.0))
    meter.note(DraftCounts(200, (200, 150), (80, 30), 1), 2.0 + DRAFTS_WINDOW_S)
    assert meter.num_drafts == 1
    assert meter.tokens_per_step == pytest.approx(2.1)
    assert meter.acceptance == pytest.approx((0.8, 0.6))


def test_a_request_is_recorded_with_its_drafts() -> None:
    desk = Desk(("b-1",))
    request = desk.submit()
    desk.begin(request)
    for tokens in (((2, 1), (0, 0)), ((1, 0),)):
        first = len(request.output_ids)
        sent = tuple(
            TokenOut(request.request_id, request.attempt, first + i, 5, drafts=drafts)
            for i, drafts in enumerate(tokens)
        )
        desk.life.tokens("b-1", Tokens(sent))
    record = to_record(request, "c1")
    assert (record.drafts_verified, record.drafts_accepted) == (3, 1)


def test_an_acceptance_that_is_given_is_named_among_the_problems() -> None:
    observer = Observer(
        Metrics("m"), Mock(num_unwritten=0, dropped=0, connected=True, damage=Damage()), "c1"
    )
    hub = Hub(Mock(), observer, "c1", FAST, PlacementLimits())
    for name in ("b-1", "b-2"):
        hello = Hello(name, "colocated", "m", "cpu", 1, 128, 8, EXPORT, draft_acceptance=0.75)
        hub._inbox.handle(name, hello)
    status = hub.status()
    assert status.ready
    assert status.problems == ("benchmark: drafts are accepted with a given probability of 0.75",)
    assert [worker.given_acceptance for worker in status.workers] == [0.75, 0.75]
