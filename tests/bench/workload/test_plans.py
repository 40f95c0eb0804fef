"""Arrivals: Poisson, and the three formats of public traces."""

import random
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from bench.harness.client.asking import Ask
from bench.harness.load_settings import LoadSettings
from bench.harness.workload.plan import Lengths, Planned, clipped, mean_rate, paced, poisson
from bench.harness.workload.plan_prompts import PlanPrompts
from bench.harness.workload.traces import read_trace
from tests.bench import stub
from tests.bench.letters import Letters

TRACES = Path(__file__).resolve().parents[3] / "bench" / "traces"


def test_poisson_arrivals_have_their_rate_and_exponential_gaps() -> None:
    plan = poisson(5.0, 5_000, Lengths(3, 9), Lengths(4, 4), random.Random(1))
    gaps = [b.at_s - a.at_s for a, b in pairwise(plan)]
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert pstdev(gaps) == pytest.approx(0.2, rel=0.05)  # as large as the mean: exponential
    assert {planned.input_len for planned in plan} == set(range(3, 10))
    assert mean_rate(plan) == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize("text", ["", "x", "0", "9-3", "3-"])
def test_lengths_that_are_none(text: str) -> None:
    if text == "3-":
        assert Lengths.parse("input_len", text) == Lengths(3, 3)
        return
    with pytest.raises(ValueError, match="input_len"):
        Lengths.parse("input_len", text)


def test_pace_and_cuts() -> None:
    plan = [Planned(0.0, 10, 5), Planned(4.0, 20, 50)]
    assert [planned.at_s for planned in paced(plan, 2.0)] == [0.0, 2.0]
    assert clipped(plan, 15, 50) == ([Planned(0.0, 10, 5), Planned(4.0, 15, 50)], 1)
    with pytest.raises(ValueError, match="all come at one time"):
        mean_rate(plan[:1])


@pytest.mark.parametrize(
    ("name", "block_len"),
    [("sample_mooncake.jsonl", 512), ("sample_bailian.jsonl", 16), ("sample_azure.csv", 0)],
)
def test_the_samples_of_all_formats(name: str, block_len: int) -> None:
    plan = read_trace(TRACES / name)
    assert len(plan) == 18
    assert plan[0].at_s == 0
    assert plan == sorted(plan, key=lambda planned: planned.at_s)
    assert {planned.block_len for planned in plan} == {block_len}
    assert 2 < plan[-1].at_s < 20


def test_what_the_fields_mean(tmp_path: Path) -> None:
    mooncake = '{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]}\n'
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n"
    azure += "2023-11-16 18:17:04.0319600,31,0\n"
    path = tmp_path / "trace"
    path.write_text(mooncake.replace("1500", "0") + mooncake)
    assert read_trace(path)[1] == Planned(1.5, 600, 7, (3, 4), 512)
    path.write_text(azure)
    first, second = read_trace(path)
    assert (first, second.output_len) == (Planned(0.0, 48, 10), 1)
    assert second.at_s == pytest.approx(0.052, abs=1e-6)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no request"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 7}', "after line 0: no 'hash_ids'"),
        ("{", "after line 0"),
        ("TIMESTAMP,ContextTokens\n", "no column GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "yesterday"),
        ('{"timestamp":0,"input_length":513,"output_length":7,"hash_ids":[1]}', "in 1 blocks"),
    ],
)
def test_a_bad_trace_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "trace.x"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"trace: trace\.x") as error:
        read_trace(path)
    assert said in str(error.value)


def prompts(seed: int, prompt_as: str) -> PlanPrompts:
    settings = LoadSettings(seed=seed, rate=1.0, prompt_as=prompt_as)  # type: ignore[arg-type]
    return PlanPrompts("m", Letters(), settings)


def prompt_of(ask: Ask) -> list[int]:
    import json

    prompt = json.loads(ask.content)["prompt"]
    return stub.encode(prompt) if isinstance(prompt, str) else prompt


@pytest.mark.parametrize("prompt_as", ["text", "ids"])
async def test_shared_blocks_are_shared_prefixes(prompt_as: str) -> None:
    made = prompts(1, prompt_as)
    one = await made.prepare("", Planned(0, 40, 5, (7, 8, 9), 16))
    two = await made.prepare("", Planned(0, 48, 5, (7, 8, 10), 16))
    other = await prompts(2, prompt_as).prepare("", Planned(0, 40, 5, (7, 8, 9), 16))
    a, b = prompt_of(one.ask), prompt_of(two.ask)
    assert (len(a), one.prompt_len, len(b)) == (40, 40, 48)
    assert a[:32] == b[:32]
    assert a[32:] != b[32:40]
    assert prompt_of(other.ask)[:32] != a[:32]
