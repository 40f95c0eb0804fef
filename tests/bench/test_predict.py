"""The predictor of pools: by hand where a set-up is simple, and by what was measured on H200s."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.predict.__main__ import compared, set_up
from bench.predict.node import Level, Node
from bench.predict.pools import predict
from bench.predict.steps import Doing, Local, Spread
from bench.predict.tables import RESULTS, STEPS, Table
from bench.setups import Setup
from decode.spread_table import between

FLAT = Node([(1, 0.1), (8192, 0.1)], Local([(1, 0.01), (1000, 0.01)]), 0.0, 0.0, 0.0)
"""Any batch of prompts takes 0.1 s. A step of one sequence takes 10 ms, of more a bit more."""
MEASURED = {
    "colocated:4": "h200-both-4.json",
    "split:1+3": "h200-split-1-3.json",
    "split:2+2": "h200-split-2-2.json",
    "colocated:2": "h200-both-2.json",
    "split:1+1": "h200-split-1-1.json",
}


@pytest.mark.parametrize("setup", ["split:1+1", "colocated:1"])
def test_one_request_takes_its_prompt_and_its_steps(setup: str) -> None:
    found = predict(FLAT, Setup.parse(setup), Level(1, 3, 100, 11))
    assert found.seconds == pytest.approx(3 * (0.1 + 10 * 0.01))
    assert found.total_tok_s == pytest.approx(3 * 111 / found.seconds)
    assert found.ttft_p99_ms == pytest.approx(100.0)


def test_a_burst_waits_for_its_prompts_and_decodes_as_they_come() -> None:
    """Four prompts that fill a batch each: the last decode worker begins 0.3 s after the first."""
    found = predict(FLAT, Setup.parse("split:1+4"), Level(4, 4, 8192, 101))
    assert found.seconds == pytest.approx(0.4 + 100 * 0.01)
    twice = predict(FLAT, Setup.parse("split:2+4"), Level(4, 4, 8192, 101))
    assert twice.seconds == pytest.approx(0.2 + 100 * 0.01)


def test_prompts_are_placed_while_little_is_ahead_and_batches_hold_so_many_tokens() -> None:
    """20 prompts of 1,024: batches are put together while the one before is computed, of eight
    prompts at most, and 16 prompts are ahead at most."""
    slow = Node([(1, 0.1), (8192, 0.1)], FLAT.steps, 0.0, 0.001, 0.0)
    found = predict(slow, Setup.parse("split:1+1"), Level(20, 20, 1024, 1))
    assert found.seconds == pytest.approx(0.001 + 0.1 * 6)  # 1, 1, 8, 7, 1, 2


def test_steps_of_a_colocated_worker_wait_for_prompts() -> None:
    """The second request comes when the first has had some of its tokens; both decode on."""
    node = Node(FLAT.prefill_s, FLAT.steps, 0.0, 0.25, 0.0)
    found = predict(node, Setup.parse("colocated:1"), Level(2, 2, 100, 101))
    step_s = FLAT.steps.token_s(Doing([2]))[0]
    # 0.25 admitted, 0.1 prompt; 0.15 steps; a step and the second prompt; the rest together
    first_alone = (0.15 + 0.01) / 0.01
    expected = 0.25 + 0.1 + 0.16 + 0.1 + (100 - first_alone) * step_s
    rest_alone = 100 - (100 - first_alone)
    assert found.seconds == pytest.approx(expected + rest_alone * 0.01, rel=0.01)


def test_a_group_steps_together_from_as_many_rows_as_pay() -> None:
    local = Table.read().local
    spread = Spread(local)
    few, many = Doing([1, 1, 1, 1, 0, 0, 0, 0]), [16] * 9
    assert spread.token_s(few) == local.token_s(few)
    assert spread.spreading(few) == set()
    together = spread.token_s(Doing(many))
    assert together[0] < 0.85 * local.of(16)
    assert together[8] == local.of(16), "eight are a group"
    assert spread.spreading(Doing(many)) == set(range(8))
    assert spread.token_s(Doing(many, {1})) == local.token_s(Doing(many)), "one computes prompts"
    assert spread.token_s(Doing(many, {8})) == together


def test_a_worker_lends_while_it_has_no_prompts_and_no_sequences() -> None:
    local = Table.read().local
    spread = Spread(local)
    alone, lent = Doing([32, 0], {1}, {1}), Doing([32, 0], (), {1})
    assert spread.token_s(alone) == local.token_s(alone)
    assert spread.token_s(lent)[0] < 0.8 * local.of(32)
    assert spread.spreading(lent) == {0}
    assert spread.token_s(Doing([32, 1], (), {1}))[0] == local.of(32)


def test_steps_between_measured_sizes_flatten_as_rows_share_experts() -> None:
    local = Table.read().local
    assert local.of(16) == pytest.approx(dict(local.step_s)[16])
    assert local.of(11) > between(local.step_s, 11)
    assert local.of(11) == pytest.approx(6.9e-3, rel=0.01)  # ITL p50 of 1 + 3 at 32


@pytest.mark.parametrize("setup", MEASURED)
def test_measured_set_ups_are_predicted_within_three_percent(setup: str) -> None:
    document = json.loads((RESULTS / MEASURED[setup]).read_text())
    ratios = compared(Table.read().node(spread=False), Setup.parse(setup), document)
    assert len(ratios) == len(document["results"]["levels"])
    assert all(0.97 < ratio < 1.03 for ratio in ratios.values()), ratios


@pytest.mark.parametrize(
    ("file", "setup", "num_levels"),
    [
        ("h200x2-levels-colocated.json", "colocated:2", 7),
        ("h200x2-levels-fixed.json", "split:1+1", 7),
        ("h200x2-spread-lending-4.json", "split:1+1", 3),
    ],
)
def test_spread_steps_are_predicted(file: str, setup: str, num_levels: int) -> None:
    document = json.loads((RESULTS / file).read_text())
    ratios = compared(Table.read().node(), Setup.parse(setup), document)
    assert len(ratios) == num_levels
    assert all(0.95 < ratio < 1.07 for ratio in ratios.values()), ratios


def test_pools_that_follow_the_load_are_predicted() -> None:
    """A simulated level begins as *1 + 1*; the measured pools had changed before."""
    document = json.loads((RESULTS / "h200x2-levels-auto-low.json").read_text())
    ratios = compared(Table.read().node(), set_up("auto:1+1"), document)
    assert len(ratios) == 3
    assert all(1.0 < ratio < 1.1 for ratio in ratios.values()), ratios


def test_the_wait_of_a_burst_at_one_prefill_worker_is_predicted() -> None:
    node, level = Table.read().node(), Level(32, 64)
    assert predict(node, Setup.parse("split:1+3"), level).ttft_p99_ms == pytest.approx(
        452, rel=0.05
    )


def test_drafts_give_more_tokens_a_step_at_a_given_acceptance() -> None:
    table = Table.read()
    with_drafts = table.with_drafts(3, 0.8)
    assert with_drafts.local.tokens_a_step == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    setup, level = Setup.parse("colocated:1"), Level(8, 8)
    gain = (
        predict(with_drafts.node(), setup, level).total_tok_s
        / predict(table.node(), setup, level).total_tok_s
    )
    assert 1.2 < gain < 1.4  # 1.30 of the engine alone
    with pytest.raises(ValueError, match="--drafts: no step with 9"):
        table.with_drafts(9, 0.8)


def test_a_file_without_steps_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json: no result"):
        Table.read([other])
    with pytest.raises(ValueError, match="no prefill and steps"):
        Table.read(STEPS[1:])


def test_levels_that_failed_are_not_compared() -> None:
    level = {"concurrency": 1, "requests": 4, "failed": 1, "not_sent": 0, "total_tok_s": 1.0}
    document: dict[str, Any] = {
        "settings": {"input_len": 8, "output_len": 8}, "results": {"levels": [level]},
    }  # fmt: skip
    assert compared(FLAT, Setup.parse("split:1+1"), document) == {}
    level["failed"] = 0
    assert list(compared(FLAT, Setup.parse("split:1+1"), document)) == [1]


def test_set_ups_are_arguments_of_baton_up() -> None:
    setup = Setup.parse("split:1+3")
    assert setup.arguments() == [
        "--role", "split", "--pools", "fixed", "--prefill", "1", "--decode", "3"
    ]  # fmt: skip
    for name in ("colocated:4", "both:4"):
        assert Setup.parse(name).arguments() == ["--role", "colocated", "--workers", "4"]
        assert Setup.parse(name).name == "colocated:4"
    for bad in ("4", "split:0+3", "colocated:0", "split:1+"):
        with pytest.raises(ValueError, match=r"^--setup: .* is neither"):
            Setup.parse(bad)


def test_levels_of_one_decode_worker_are_a_table_too(tmp_path: Path) -> None:
    levels = [
        {"concurrency": n, "tpot_ms": {"p50": 10.0 + n}, "ttft_ms": {"p50": 50.0}} for n in (1, 4)
    ]
    document = {"kind": "throughput", "settings": {"input_len": 64}, "results": {"levels": levels}}
    file = tmp_path / "levels.json"
    file.write_text(json.dumps(document))
    table = Table.read([file])
    assert table.local.of(2) == pytest.approx(0.012)
    assert between(table.prefill_s, 128) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="only steps of the full-size model"):
        table.with_drafts(0, 0.0)
    file.write_text(json.dumps(document | {"results": {"levels": levels[1:]}}))
    with pytest.raises(ValueError, match=r"levels\.json: no level with one request"):
        Table.read([file])
