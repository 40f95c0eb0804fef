"""The soak on a real stack, short: handoffs verified, clients that leave, workers killed."""

from pathlib import Path

from bench.handoff_soak import Plan, soak

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"


def test_no_byte_no_token_and_no_page_is_lost() -> None:
    plan = Plan(
        handoffs=30, concurrency=6, max_prompt=512, max_output=16, abort_share=0.2, kills=2,
        seed=1, num_ids=1_000,
    )  # fmt: skip
    arguments = ["--model", str(TINY), "--device", "cpu", "--prefill", "1", "--decode", "1"]
    settings = {"threads": "1", "num_pages": "256", "heartbeat": "0.25"}
    result = soak(plan, arguments, settings, start_s=90.0)
    assert result["passed"], result
    assert [kill["victim"] for kill in result["kills"]] == ["prefill-1", "decode-1"]
    assert result["handoffs"] >= plan.handoffs
    assert result["aborted"] > 0
    assert min(result["selftest_bytes_per_second"].values()) > 0.0
