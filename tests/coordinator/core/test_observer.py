"""What the metrics and the log tell of a request's end and of its new attempts."""

import logging
import re
from dataclasses import replace
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.core.contract import SequenceRequest, ServiceStatus, WorkerStatus
from coordinator.core.effects import Ended, Moved, Retried
from coordinator.core.load_history import PERIOD_S
from coordinator.core.observer import Observer
from coordinator.record.redis_link import Damage
from telemetry.metrics import Metrics
from tests.coordinator.desk import Desk
from transport.wire.messages import Failed
from transport.wire.reports import WorkerGauges
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed


def told(desk: Desk) -> dict[str, float]:
    """Samples after an observer has heard of all that happened at the desk."""
    metrics = Metrics("m")
    observer = Observer(metrics, Mock(), "c1")
    for effect in desk.take_effects():
        match effect:
            case Retried(request=request, code=code, message=why):
                observer.retried(request, code, why)
            case Ended(request=request):
                observer.ended(request)
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        sample.name + "".join(f" {v}" for v in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_new_attempt_is_counted_and_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    desk = Desk()
    spec = SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(8), http_id="mine")
    request = desk.life.submit(spec, desk.now)
    desk.life.worker_lost(request.prefill_worker)
    failed = Failed("r", request.attempt, "preempted", "out of pages", True)
    desk.life.failed(request.prefill_worker, failed)
    found = told(desk)
    assert found["baton_retries_total worker_lost"] == 1
    assert found["baton_retries_total preempted"] == 1
    assert found["baton_preemptions_total"] == 1
    lost, preempted = caplog.records
    assert (lost.levelname, lost.code, lost.http_id, lost.request_id) == (
        "WARNING", "worker_lost", "mine", "r",
    )  # fmt: skip
    assert (preempted.levelname, preempted.why) == ("INFO", "out of pages")


def test_the_end_of_a_request_is_one_line_and_a_failure_a_warning_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    desk = Desk(("b-1",))
    spec = SequenceRequest("r", packed((1, 2)), SamplingParams(), StopRule(8), "mine", key="alice")
    request = desk.life.submit(spec, desk.now)
    desk.now += 0.25
    desk.begin(request)
    desk.step(request, 7, "stop")
    lost = desk.life.submit(replace(spec, request_id="s", key=""), desk.now)
    desk.life.fail_all([lost], "no_worker", "none is left")
    told(desk)
    ended, failed = (vars(record) for record in caplog.records)
    assert {n: ended[n] for n in ("levelname", "message", "http_id", "state", "key", "decode")} == {
        "levelname": "INFO", "message": "ended", "http_id": "mine", "state": "finished",
        "key": "alice", "decode": "b-1",
    }  # fmt: skip
    assert ended["ttft_s"] == pytest.approx(0.25)
    assert (failed["levelname"], failed["reason"], failed["why"]) == (
        "WARNING", "no_worker", "none is left",
    )  # fmt: skip
    assert not {"key", "ttft_s"} & failed.keys()


def test_time_per_output_token_leaves_the_first_one_out() -> None:
    desk = Desk(("b-1",))
    request = desk.submit()
    desk.begin(request)
    for token, finish in ((2, None), (3, None), (7, "stop")):
        desk.now += 0.5
        desk.step(request, token, finish)
    found = told(desk)
    assert found["baton_tpot_seconds_count"] == 1
    assert found["baton_tpot_seconds_sum"] == pytest.approx(0.5)
    assert found["baton_request_prompt_tokens_sum"] == len(request.spec.prompt_ids)
    assert found["baton_request_output_tokens_sum"] == len(request.output_ids)
    assert found["baton_request_max_tokens_sum"] == request.spec.stop.max_tokens


def test_a_heartbeat_tells_what_its_worker_dropped_as_stale() -> None:
    worker = Desk().registry.get("d-1")
    worker.gauges = WorkerGauges(1, 1, stale_dropped=3)
    metrics = Metrics("m")
    Observer(metrics, Mock(), "c1").workers.heartbeat(worker)
    sample = 'baton_worker_stale_dropped{instance="d-1",role="decode"} '
    assert sample + "3.0" in metrics.render().decode()
    metrics.forget_worker("d-1", "decode")
    assert sample not in metrics.render().decode()


def test_each_tick_tells_how_many_records_redis_does_not_have_yet() -> None:
    metrics = Metrics("m")
    records = Mock(num_unwritten=7, dropped=0, damage=Damage())
    observer = Observer(metrics, records, "c1")
    status = ServiceStatus(True, (), False, 0, 0, redis_connected=False)
    observer.tick(status, 0, 0)
    assert "baton_redis_records_unwritten 7.0\n" in metrics.render().decode()
    records.num_unwritten = 0
    observer.tick(status, 0, 0)
    assert "baton_redis_records_unwritten 0.0\n" in metrics.render().decode()


def test_the_queue_has_prompts_that_wait_at_a_worker_too() -> None:
    workers = tuple(
        WorkerStatus(f"{role}-1", role, "cpu", 15, waiting, 8, 8, 4, 4, "", prompts_waiting=prompts)
        for role, waiting, prompts in (("prefill", 40, 40), ("decode", 3, 2), ("colocated", 5, 5))
    )
    metrics = Metrics("m")
    observer = Observer(metrics, Mock(num_unwritten=0, dropped=0, damage=Damage()), "c1")
    now = 100.0
    observer.clock = Mock(side_effect=lambda: now)
    observer.tick(ServiceStatus(True, (), False, 7, 73, True, workers), 0, 0)
    now += PERIOD_S
    assert [point.queued for point in observer.load_series().points] == [7 + 40 + 2 + 5]
    exported = metrics.render().decode()
    assert "baton_requests_queued 54.0\n" in exported
    assert re.search(r"^vllm:num_requests_waiting\{.*\} 54\.0$", exported, re.MULTILINE)


def test_of_what_waits_at_a_decode_worker_its_prompts_are_in_the_queue() -> None:
    desk = Desk(("p-1", "d-1"))
    desk.life.worker_draining(desk.registry.require("p-1"))
    request, worker = desk.submit(), desk.registry.require("d-1")
    worker.take_gauges(WorkerGauges(8, 8, waiting=3))
    assert (worker.status(0.0).waiting, worker.status(0.0).prompts_waiting) == (3, 1)
    desk.begin(request)
    assert worker.status(0.0).prompts_waiting == 0, "the others are handoffs"


def test_moves_are_counted_by_reason_and_outcome_and_those_of_the_last_minute() -> None:
    metrics = Metrics("m")
    observer, now = Observer(metrics, Mock(), "c1"), 100.0
    observer.clock = lambda: now
    request = Desk().submit()
    for _ in range(2):
        observer.report(Moved(request, "drain", stayed=False, seconds=0.02))
    observer.report(Moved(request, "memory", stayed=True, seconds=0.01))
    assert observer.num_moved_last_minute() == 2
    now += 61.0
    assert observer.num_moved_last_minute() == 0
    text = metrics.render().decode()
    assert 'baton_moves_total{outcome="moved",reason="drain"} 2.0' in text
    assert 'baton_moves_total{outcome="stayed",reason="memory"} 1.0' in text
    assert 'baton_move_seconds_count{reason="drain"} 2.0' in text
