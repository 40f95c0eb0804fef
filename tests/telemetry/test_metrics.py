"""What a scrape of the metrics holds."""

import threading
from concurrent.futures import ThreadPoolExecutor

from prometheus_client.parser import text_string_to_metric_families

from telemetry.metrics import Metrics
from telemetry.worker_metrics import WorkerLevels


def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    samples = [s for family in families for s in family.samples]
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    assert len(found) == len(samples), "a series appears twice"
    return found


def levels(num_pages: int, free_pages: int) -> WorkerLevels:
    return WorkerLevels(
        num_pages, free_pages, num_state_slots=4, free_state_slots=4, running=0, waiting=0
    )


VLLM = (("engine", "0"), ("model_name", "tiny"))


def test_every_promised_vllm_name_is_there() -> None:
    names = {name for name, _ in scrape(Metrics("tiny"))}
    for wanted in (
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_count",
        "e2e_request_latency_seconds_sum", "request_queue_time_seconds_bucket",
        "request_prefill_time_seconds_bucket", "request_decode_time_seconds_bucket",
        "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
        "external_prefix_cache_queries_total", "external_prefix_cache_hits_total",
        "prompt_tokens_cached_total", "num_preemptions_total", "cache_config_info",
        "request_prompt_tokens_bucket", "request_generation_tokens_count",
        "request_params_n_sum", "iteration_tokens_total_bucket", "request_params_max_tokens_bucket",
        "request_inference_time_seconds_bucket",
    ):  # fmt: skip
        assert f"vllm:{wanted}" in names


def test_aliases_repeat_the_own_numbers() -> None:
    metrics = Metrics("tiny")
    metrics.ttft_s.observe(0.03)
    metrics.generation_tokens.inc(7)
    metrics.running.set(3)
    found = scrape(metrics)
    assert found["vllm:generation_tokens_total", VLLM] == 7
    assert found["baton_generation_tokens_total", ()] == 7
    assert found["vllm:num_requests_running", VLLM] == 3
    assert found["vllm:time_to_first_token_seconds_count", VLLM] == 1
    le = (("engine", "0"), ("le", "0.04"), ("model_name", "tiny"))
    assert found["vllm:time_to_first_token_seconds_bucket", le] == 1


def test_success_counts_reasons_and_leaves_failures_out() -> None:
    metrics = Metrics("tiny")
    metrics.requests.labels("finished", "stop").inc(2)
    metrics.requests.labels("finished", "length").inc()
    metrics.requests.labels("cancelled", "client").inc()
    metrics.requests.labels("cancelled", "drain").inc()
    metrics.requests.labels("failed", "peer_gone").inc(9)
    found = scrape(metrics)
    by_reason = {
        dict(labels)["finished_reason"]: value
        for (name, labels), value in found.items()
        if name == "vllm:request_success_total"
    }
    assert by_reason == {"stop": 2, "length": 1, "abort": 2}


def test_cache_usage_is_that_of_the_workers_that_decode() -> None:
    metrics = Metrics("tiny")
    assert scrape(metrics)["vllm:kv_cache_usage_perc", VLLM] == 0
    metrics.workers.report("p0", "prefill", levels(num_pages=100, free_pages=0))
    metrics.workers.report("d0", "decode", levels(num_pages=100, free_pages=75))
    metrics.workers.report("d1", "colocated", levels(num_pages=100, free_pages=25))
    assert scrape(metrics)["vllm:kv_cache_usage_perc", VLLM] == 0.5
    metrics.page_tokens.set(64)
    sizes = (("block_size", "64"), VLLM[0], VLLM[1], ("num_gpu_blocks", "200"))
    assert scrape(metrics)["vllm:cache_config_info", sizes] == 1


def test_a_gpus_figures_are_in_base_units_and_what_is_unknown_is_absent() -> None:
    metrics = Metrics("tiny")
    figures = {"temperature_c": 61.0, "utilisation_pct": 97.0, "sm_clock_mhz": 1965.0}
    metrics.gpus.report("d0", "decode", "GPU-1", figures, {48: 2})
    labels = (("gpu", "GPU-1"), ("instance", "d0"), ("role", "decode"))
    found = {k: v for k, v in scrape(metrics).items() if k[0].startswith("baton_gpu_")}
    assert found == {
        ("baton_gpu_temperature_celsius", labels): 61.0,
        ("baton_gpu_utilisation_ratio", labels): 0.97,
        ("baton_gpu_sm_clock_hertz", labels): 1.965e9,
        ("baton_gpu_xid_events_total", (*labels, ("xid", "48"))): 2.0,
    }


def test_a_forgotten_worker_leaves_no_series() -> None:
    metrics = Metrics("tiny")
    metrics.workers.report("d0", "decode", levels(num_pages=8, free_pages=8))
    metrics.gpus.report("d0", "decode", "GPU-1", {"power_w": 500.0}, {79: 1})
    assert any(("instance", "d0") in labels for _, labels in scrape(metrics))
    metrics.forget_worker("d0", "decode")
    metrics.forget_worker("never seen", "decode")
    assert not any(("instance", "d0") in labels for _, labels in scrape(metrics))


def test_a_scrape_is_whole_while_workers_come_and_go() -> None:
    metrics = Metrics("m")
    stop = threading.Event()

    def scrape_on() -> int:
        num_pages = 0
        while not stop.is_set() or not num_pages:
            assert any(name == "baton_worker_free_pages" for name, _ in scrape(metrics))
            num_pages += 1
        return num_pages

    metrics.workers.report("stays", "decode", levels(num_pages=8, free_pages=4))
    with ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(scrape_on)
        for number in range(400):
            metrics.workers.report(f"w-{number}", "decode", levels(num_pages=8, free_pages=4))
            metrics.ttft_s.observe(0.1)
            metrics.http.key_requests.labels(f"key-{number}", "admitted").inc()
            if number >= 8:
                metrics.forget_worker(f"w-{number - 8}", "decode")
        stop.set()
        assert scraping.result(timeout=10) > 0


def test_a_worker_that_goes_takes_its_tests_with_it_and_one_that_changes_its_role_none() -> None:
    metrics = Metrics("m")
    for exporter, puller in (("d-1", "d-2"), ("p-1", "d-2"), ("p-1", "d-1")):
        metrics.workers.selftest_bytes_per_s.labels(exporter, puller).set(1.0)

    def shown() -> int:
        return metrics.render().decode().count("\nbaton_handoff_selftest_bytes_per_second{")

    metrics.forget_worker("d-2", "decode")
    assert shown() == 3
    metrics.workers.forget_tests("d-1")
    assert shown() == 1
