"""Result documents as the commands write them, made of known figures."""

from typing import Any

from bench import result_file
from bench.harness.client.record import Arrival, Record
from bench.harness.figures.counting import Count
from bench.harness.figures.goodput import Bounds
from bench.harness.figures.outcome import Outcome
from bench.harness.figures.summary import summary
from bench.harness.figures.timeline import timeline
from bench.harness.load_result import Load, Run
from bench.harness.load_settings import LoadSettings
from bench.harness.sweep import Sweep
from bench.harness.workload.plan import Lengths

LEVELS = (1, 2, 4, 8, 16, 32, 64)
ENVIRONMENT = {"command": "baton bench throughput", "commit": "abc", "at": "2026-01-01", "gpus": []}
SERVER = {"url": "http://127.0.0.1:1", "model": "m", "version": "1"}


def outcome(due_s: float, speed: float = 1.0) -> Outcome:
    times = [due_s + n / speed for n in (1, 2, 3)]
    record = Record(
        due_at_s=due_s, sent_at_s=due_s, first_byte_at_s=due_s, done_at_s=times[-1], streamed=True,
        arrivals=tuple(Arrival(at, 1, 1, 1) for at in times),
    )  # fmt: skip
    return Outcome("#", record, Count(3, 3, 3, 3, "ids"), 5)


def throughput_document(
    speed: float = 1.0, failed: list[dict[str, Any]] | None = None, levels: Any = LEVELS
) -> dict[str, Any]:
    """Each level: four requests of 5 tokens in and 3 out, in 3 / ``speed`` seconds."""
    outcomes = [outcome(0.0, speed) for _ in range(4)]
    found = [
        {"concurrency": level, **summary(outcomes), "not_sent": 0, "warm_up_failures": [],
         "spot_checks": []}
        for level in levels
    ]  # fmt: skip
    problems = ["level 1: 1 of 4 failed (1 garbage)"] if failed else []
    results = {"levels": found, "failures": failed or [], "timeline": timeline(outcomes, 0.0)}
    settings = {"input_len": 5, "output_len": 3, "requests": 4}
    return result_file.rounded(  # type: ignore[no-any-return]
        result_file.document(
            "throughput", environment=ENVIRONMENT, server=SERVER, settings=settings,
            results=results, problems=problems,
        )
    )  # fmt: skip


def _settings(**more: Any) -> LoadSettings:
    lengths = {"input_len": Lengths(5, 5), "output_len": Lengths(3, 3)}
    return LoadSettings(seed=1, rate=1.0, slo_ttft_ms=5000, slo_tpot_ms=5000, **lengths, **more)


def _run(rate: float, settings: LoadSettings) -> Run:
    return Run(settings, rate, 0.0, [outcome(n / rate) for n in range(4)], 4, 0)


def load_document() -> dict[str, Any]:
    settings = _settings()
    found = Load(settings, "t", [_run(1.0, settings)])
    return result_file.document(
        "load", environment=ENVIRONMENT, server=SERVER, settings=settings.json(),
        results=found.json(), problems=found.problems(),
    )  # fmt: skip


def sweep_document() -> dict[str, Any]:
    settings = _settings(sweep=True)
    found = Sweep(settings, "t", {r: _run(r, settings) for r in (1.0, 2.0)}, {0.9: Bounds(2, 4)})
    return result_file.document(
        "sweep", environment=ENVIRONMENT, server=SERVER, settings=settings.json(),
        results=found.json(), problems=found.problems(),
    )  # fmt: skip
