"""What heartbeats tell of the prefix cache: its growth, what came of late, and what is kept."""

from unittest.mock import Mock

from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from coordinator.core.observer import Observer
from coordinator.core.request_report import to_record
from coordinator.core.workers.meters import PREFIXES_WINDOW_S, PrefixMeter
from telemetry.metrics import Metrics
from tests.coordinator.desk import Desk
from transport.wire.messages import Prefilled, TokenOut
from transport.wire.reports import PrefixCounts, WorkerGauges

BEFORE = PrefixCounts(
    queried=1000, reused_gpu=400, reused_host=200, reused_peer=100,
    missed_new=10, missed_no_state=5, missed_evicted=2, evicted=7, evicted_host=3,
    num_kept=4, pages_kept=30, num_kept_host=6, host_bytes=5000, host_size_bytes=8000,
)  # fmt: skip
AFTER = PrefixCounts(
    queried=1600, reused_gpu=700, reused_host=250, reused_peer=110,
    missed_new=12, missed_no_state=6, missed_evicted=2, evicted=11, evicted_host=4,
    num_kept=3, pages_kept=20, num_kept_host=5, host_bytes=4000, host_size_bytes=8000,
)  # fmt: skip
GROWTH = structs.replace(
    AFTER, queried=600, reused_gpu=300, reused_host=50, reused_peer=10,
    missed_new=2, missed_no_state=1, missed_evicted=0, evicted=4, evicted_host=1,
)  # fmt: skip


class Told:
    """An observer's metrics, from heartbeats of workers."""

    def __init__(self) -> None:
        self.metrics = Metrics("m")
        self.observer = Observer(self.metrics, Mock(), "c1")

    def heartbeat(self, desk: Desk, instance: str, counts: PrefixCounts, now: float) -> None:
        worker = desk.registry.require(instance)
        worker.gauges = WorkerGauges(1, 1, prefix=counts)
        worker.prefixes.note(counts, now)
        self.observer.workers.counted(worker)
        self.observer.workers.heartbeat(worker)

    def samples(self, beginning: str) -> dict[tuple[str, ...], float]:
        """Name without its beginning, then tier or reason if there is one; summed over workers."""
        found: dict[tuple[str, ...], float] = {}
        for family in text_string_to_metric_families(self.metrics.render().decode()):
            for sample in family.samples:
                if sample.name.startswith(beginning) and not sample.name.endswith("_created"):
                    labels = [sample.labels[n] for n in ("tier", "reason") if n in sample.labels]
                    key = (sample.name.removeprefix(beginning), *labels)
                    found[key] = found.get(key, 0.0) + sample.value
        return found


def test_metrics_of_a_worker_grow_by_what_each_heartbeat_brings() -> None:
    desk, told = Desk(), Told()
    told.heartbeat(desk, "p-1", BEFORE, 0.0)
    found = told.samples("baton_prefix_cache_")
    assert found["queried_tokens_total",] == 0, "of an earlier coordinator"
    assert found["prefixes", "gpu"] == 4
    told.heartbeat(desk, "p-1", AFTER, 1.0)
    layout = desk.registry.require("p-1").layout
    assert told.samples("baton_prefix_cache_") == {
        ("queried_tokens_total",): 600,
        ("reused_tokens_total", "gpu"): 300,
        ("reused_tokens_total", "host"): 50,
        ("reused_tokens_total", "peer"): 10,
        ("missed_prompts_total", "new"): 2,
        ("missed_prompts_total", "no_state"): 1,
        ("missed_prompts_total", "evicted"): 0,
        ("evictions_total", "gpu"): 4,
        ("evictions_total", "host"): 1,
        ("prefixes", "gpu"): 3,
        ("prefixes", "host"): 5,
        ("pages",): 20,
        ("bytes", "gpu"): 20 * layout.page_bytes + 3 * layout.state_slot_bytes,
        ("bytes", "host"): 4000,
        ("host_size_bytes",): 8000,
    }


def test_vllms_counters_are_over_all_workers_and_do_not_fall_when_one_leaves() -> None:
    desk, told = Desk(), Told()
    for instance in ("p-1", "d-1"):
        told.heartbeat(desk, instance, BEFORE, 0.0)
        told.heartbeat(desk, instance, AFTER, 1.0)
    expected = {
        ("prefix_cache_queries_total",): 2 * 600,
        ("prefix_cache_hits_total",): 2 * 300,
        ("external_prefix_cache_queries_total",): 2 * 300,
        ("external_prefix_cache_hits_total",): 2 * 60,
        ("prompt_tokens_cached_total",): 2 * 360,
    }
    assert told.samples("vllm:").items() >= expected.items()
    told.observer.workers.departed(desk.registry.require("d-1"), "silent")
    assert told.samples("baton_prefix_cache_")["queried_tokens_total",] == 600
    assert told.samples("vllm:").items() >= expected.items()


def test_a_worker_shows_the_last_minute_and_what_it_keeps() -> None:
    desk = Desk()
    worker = desk.registry.require("p-1")
    assert worker.status(0.0).queried_tokens == 0
    for counts, at in ((PrefixCounts(), 0.0), (BEFORE, 1.0), (AFTER, 1.5 + PREFIXES_WINDOW_S)):
        worker.prefixes.note(counts, at)
    status = worker.status(0.0)
    assert (status.queried_tokens, status.reused_tokens) == (600, 300 + 50 + 10)
    assert (status.kept_prefixes, status.kept_prefixes_host) == (3, 5)


def test_counts_that_fall_are_no_growth() -> None:
    meter = PrefixMeter()
    meter.note(AFTER, 0.0)
    assert meter.growth.queried == 0
    meter.note(BEFORE, 1.0)
    assert meter.growth == PrefixCounts(
        num_kept=4, pages_kept=30, num_kept_host=6, host_bytes=5000, host_size_bytes=8000
    )
    meter.note(AFTER, 2.0)
    assert meter.growth == GROWTH


def test_a_request_is_recorded_with_what_was_reused() -> None:
    desk = Desk()
    request = desk.submit()
    token = TokenOut(request.request_id, request.attempt, 0, 5, finish="stop")
    prompt_len = len(request.spec.prompt_ids)
    desk.life.prefilled(
        request.prefill_worker, Prefilled(token, None, 0.0, 0.1, prompt_len - 1, "host")
    )
    record = to_record(request, "c1")
    assert (record.num_reused, record.reused) == (prompt_len - 1, "host")
