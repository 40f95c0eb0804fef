"""Commands as processes: their results, and those that have none or do not end."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from bench import commands, result_file
from bench.recording import Recording
from tests.bench.stub import Behaviour, Stub

LEVEL = ("throughput", "--levels", "2", "--requests", "2", "--input-len", "8", "--output-len", "4")
MORE = ("--tokenizer", "models/tiny", "--spot-checks", "0")


def test_a_process_that_does_not_end_is_given_up() -> None:
    with pytest.raises(commands.CommandFailed, match=r"has not ended in 0 s"):
        commands.run(["http.server", "--bind", "127.0.0.1", "0"], 0.3)


@pytest.mark.parametrize("fault", [None, "drop"])
def test_baton_bench_gives_its_result(
    serve_stub: Callable[[Behaviour], Stub], fault: str | None
) -> None:
    url = serve_stub(Behaviour(ttft_s=0.0, itl_s=0.0, fault=fault, fault_every=2)).url
    measured = commands.baton_bench(*LEVEL, *MORE, url=url, within_s=60)
    assert measured.document["kind"] == "throughput"
    assert measured.document["settings"]["extra_body"] == {"top_k": 0, "top_p": 1.0}
    assert [level["concurrency"] for level in measured.document["results"]["levels"]] == [2]
    assert measured.exit_code == (0 if measured.document["ok"] else 1)
    assert bool(measured.document["results"]["levels"][0]["failed"]) == bool(fault)


def test_results_so_far_spare_an_earlier_result(tmp_path: Path) -> None:
    out, meanwhile = tmp_path / "result.json", tmp_path / "result.failed.json"

    def recording(value: int) -> Recording:
        made = Recording("bench.a_kind", out, {})
        made.results["value"] = value
        return made

    first = recording(1)
    assert not first.save()
    assert result_file.load(out, "a-kind")["results"] == {"value": 1}, "there is no earlier one"
    first.results["value"] = 2
    assert first.save(stopped=None)
    good, bad = recording(3), recording(5)
    good.save()
    assert result_file.load(out)["results"] == {"value": 2}
    with pytest.raises(typer.Exit) as ended:
        good.end()
    assert ended.value.exit_code == 0
    assert not meanwhile.exists()
    bad.problems.append("slow")
    with pytest.raises(typer.Exit) as ended:
        bad.end()
    assert ended.value.exit_code == 1
    kept = [result_file.load(path)["results"]["value"] for path in (out, meanwhile)]
    assert kept == [3, 5]


def test_a_command_without_a_result_is_told() -> None:
    with pytest.raises(commands.CommandFailed, match=r"(?s)throughput ended with 2: .*--levles"):
        commands.baton_bench("throughput", "--levles", "2", url="http://127.0.0.1:1", within_s=60)
