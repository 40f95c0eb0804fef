"""Open loops against a server whose timings are known."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.harness.client.asking import completion
from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from bench.harness.client.reading import read
from bench.harness.loops import open_loop
from bench.harness.run_control import Patience, RunControl
from tests.bench.stub import Behaviour, Stub

ServeStub = Callable[[Behaviour], Stub]
TRACES = Path(__file__).resolve().parents[2] / "bench" / "traces"


def bench(url: str, out: Path, *more: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    fixed = ["load", "--url", url, "--vocab-size", "676", "--out", str(out), "--stall-s", "20"]
    result = CliRunner().invoke(app, [*fixed, *more])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1]), json.loads(out.read_text())


async def test_requests_are_sent_when_due_whatever_the_server_does() -> None:
    """A server that has not answered the first yet gets the second all the same."""
    asks = [completion("m", "aabb", max_tokens=2)] * 5
    offsets = [0.0, 0.02, 0.04, 0.05, 0.06]
    async with Stub(Behaviour(1.0, 0.01)) as stub, Client(endpoint(stub.url)) as client:
        begin_s, found = await open_loop(client, asks, offsets, RunControl(client, Patience()))
        came = [served.came_at_s - begin_s for served in stub.served]
    records = [read(exchange) for exchange in found if exchange]
    assert len(records) == 5
    assert came == sorted(came)
    assert all(due <= at for due, at in zip(offsets, came, strict=True))
    assert came[-1] < 1.0  # before anything was answered
    assert all(record.ttft_s is not None and record.ttft_s >= 1.0 for record in records)


async def test_a_full_server_gets_no_more() -> None:
    """Two may be under way: of five requests the third and fourth come at a bad moment."""
    asks = [completion("m", "aabb", max_tokens=2)] * 5
    offsets = [0.0, 0.01, 0.05, 0.1, 0.9]
    async with Stub(Behaviour(0.5, 0.01)) as stub, Client(endpoint(stub.url)) as client:
        control = RunControl(client, Patience())
        _, found = await open_loop(client, asks, offsets, control, max_under_way=2)
    assert [exchange is not None for exchange in found] == [True, True, False, False, True]


def test_what_is_left_out_is_no_failure(serve_stub: ServeStub, tmp_path: Path) -> None:
    stub = serve_stub(Behaviour(0.5, 0.001))
    more = ["--rate", "40", "--requests", "20", "--input-len", "8", "--output-len", "2"]
    status, _, found = bench(stub.url, tmp_path / "r.json", *more, "--max-under-way", "3")
    assert status == 0
    run = found["results"]["run"]
    assert 3 <= run["planned"] < 20
    assert run["planned"] + run["left_out"] == 20
    assert (run["requests"], run["not_sent"]) == (run["planned"], 0)
    assert run["attained"] == 1.0


async def test_a_late_client_cannot_hide_it() -> None:
    """The loop is blocked when requests fall due: they count from when they were due."""
    asks = [completion("m", "aabb", max_tokens=2)] * 2
    async with Stub(Behaviour(0.001, 0.001)) as stub, Client(endpoint(stub.url)) as client:
        running = asyncio.create_task(
            open_loop(client, asks, [0.0, 0.01], RunControl(client, Patience()))
        )
        await asyncio.sleep(0)
        import time

        time.sleep(0.3)  # noqa: ASYNC251  (this is the late client)
        _, found = await running
    records = [read(exchange) for exchange in found if exchange]
    assert all(record.ttft_s is not None and record.ttft_s > 0.2 for record in records)


async def test_a_stopped_run_sends_no_more() -> None:
    asks = [completion("m", "aabb", max_tokens=2)] * 2
    async with Stub(Behaviour(0.001, 0.001)) as stub, Client(endpoint(stub.url)) as client:
        control = RunControl(client, Patience())
        running = asyncio.create_task(open_loop(client, asks, [0.0, 60.0], control))
        stub.on_request = lambda number: control.stop("enough")
        _, (first, second) = await running
    assert first is not None
    assert second is None


def test_a_trace_is_replayed_and_judged(serve_stub: ServeStub, tmp_path: Path) -> None:
    stub = serve_stub(Behaviour(0.01, 0.001))
    more = ["--trace", str(TRACES / "sample_mooncake.jsonl"), "--rate", "40"]
    more += ["--prompt-as", "ids", "--slo-ttft-ms", "20000", "--slo-tpot-ms", "5000"]
    more += ["--max-output-len", "20"]
    status, line, found = bench(stub.url, tmp_path / "r.json", *more)
    assert status == 0
    run = found["results"]["run"]
    assert (run["requests"], run["failed"], run["not_sent"]) == (18, 0, 0)
    assert run["clipped"] > 0
    assert line["attained"] == run["attained"] == 1
    assert run["met"] == {"90%": True, "99%": True}
    assert run["tbt_ms"]["p50"] >= run["itl_ms"]["p50"]
    assert sum(second["arrivals"] for second in found["results"]["timeline"]) == 18
    assert sum(second["tokens"] for second in found["results"]["timeline"]) == pytest.approx(
        run["output_tokens"], rel=1e-3
    )


def test_half_of_the_answers_dropped(serve_stub: ServeStub, tmp_path: Path) -> None:
    stub = serve_stub(Behaviour(0.005, 0.001, fault="drop", fault_every=2))
    more = ["--rate", "100", "--requests", "20", "--input-len", "8", "--output-len", "6"]
    more += ["--slo-ttft-ms", "20000", "--slo-tpot-ms", "5000"]
    status, _, found = bench(stub.url, tmp_path / "r.json", *more)
    run = found["results"]["run"]
    assert status == 1
    assert (run["failed"], run["attained"]) == (10, 0.5)
    assert "10 of 20 failed (10 dropped)" in found["problems"][0]


def test_a_sweep_finds_the_highest_rate_that_meets_the_targets(
    serve_stub: ServeStub, tmp_path: Path
) -> None:
    """A server that always takes 50 ms meets 60 ms at every rate, and 40 ms at none."""
    stub = serve_stub(Behaviour(0.05, 0.001))
    more = ["--sweep", "--rate", "50", "--duration-s", "0.2", "--least-requests", "10"]
    more += ["--input-len", "8", "--output-len", "2", "--max-trials", "3", "--slo-tpot-ms", "20000"]
    status, line, found = bench(stub.url, tmp_path / "r.json", *more, "--slo-ttft-ms", "20000")
    assert status == 0
    assert line["goodput"]["99%"] == {"requests_per_s": 200.0, "missed_at": None}
    assert [trial["rate"] for trial in found["results"]["trials"]] == [50.0, 100.0, 200.0]
    status, line, found = bench(stub.url, tmp_path / "s.json", *more, "--slo-ttft-ms", "40")
    assert status == 1
    assert line["goodput"]["90%"]["requests_per_s"] is None
    assert "no rate had 90% of the requests within the targets" in found["problems"]


def test_a_sweep_runs_no_more_rates_than_it_may(serve_stub: ServeStub, tmp_path: Path) -> None:
    """The shares have different goodputs (every tenth request fails), and five rates together."""
    stub = serve_stub(Behaviour(0.005, 0.001, fault="refuse", fault_every=20))
    more = ["--sweep", "--rate", "50", "--duration-s", "0.2", "--least-requests", "10"]
    more += ["--input-len", "8", "--output-len", "2", "--max-trials", "5"]
    _, line, found = bench(stub.url, tmp_path / "r.json", *more)
    assert len(found["results"]["trials"]) == line["trials"] == 5
    assert set(line["goodput"]) == {"90%", "99%"}


def test_a_run_that_is_not_good_never_replaces_an_earlier_result(
    serve_stub: ServeStub, tmp_path: Path
) -> None:
    out, failed = tmp_path / "r.json", tmp_path / "r.failed.json"
    more = ["--rate", "100", "--requests", "4", "--input-len", "8", "--output-len", "6"]
    status, line, good = bench(serve_stub(Behaviour(0.001, 0.001)).url, out, *more)
    assert (status, line["file"]) == (0, str(out))
    bad = serve_stub(Behaviour(0.001, 0.001, fault="drop", fault_every=2)).url
    status, line, kept = bench(bad, out, *more)
    assert (status, line["file"], kept) == (1, str(failed), good)
    assert json.loads(failed.read_text())["ok"] is False
    status, line, kept = bench("http://127.0.0.1:9", out, *more)
    assert (status, line["file"], kept) == (2, str(failed), good)
    assert json.loads(failed.read_text())["results"] == {}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ([], "rate"),
        (["--rate", "0"], "rate"),
        (["--rate", "nan"], "rate: nan"),
        (["--rate", "inf"], "rate: inf"),
        (["--rate", "1", "--think-s", "nan"], "think_s: nan"),
        (["--rate", "1", "--temperature", "nan"], "temperature: nan"),
        (["--rate", "1", "--stall-s", "nan"], "stall_s: nan"),
        (["--rate", "1", "--time-limit-s", "inf"], "time_limit_s: inf"),
        (["--rate", "1", "--slo-ttft-ms", "0"], "slo_ttft_ms"),
        (["--rate", "1", "--slo-tpot-ms", "nan"], "slo_tpot_ms: nan"),
        (["--rate", "1", "--input-len", "9-3"], "input_len"),
        (["--trace", "/nowhere.csv"], "trace"),
        (["--sweep", "--trace", str(TRACES / "sample_azure.csv")], "rate"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, more: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["load", "--out", str(tmp_path / "r.json"), *more])
    assert result.exit_code == 2
    assert named in result.stderr
