"""GSM8K-CoT through lm-evaluation-harness, in a process of its own with a time limit."""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.cannot_measure import CannotMeasure
from bench.correctness.outcome import GSM8K_GATE, Outcome
from bench.correctness.problems import read

_ROOT = Path(__file__).resolve().parents[2]
_KILL_S = 10.0


@dataclass(frozen=True)
class Gsm8kPlan:
    """``data`` None: the hub's test set. ``num_problems`` are drawn by ``seed``; 0: all.

    A request may take ``request_limit_s``, is tried ``tries`` times, and may give ``max_tokens``;
    the whole run may take ``limit_s``. ``gated`` is the match that the gate is on.
    """

    url: str
    model: str
    seed: int
    data: Path | None = None
    num_problems: int = 200
    concurrency: int = 8
    max_tokens: int = 1024
    tries: int = 3
    request_limit_s: int = 300
    limit_s: float = 7200.0
    gate: float = GSM8K_GATE
    gated: str = "flexible"

    def __post_init__(self) -> None:
        if self.num_problems < 0:
            raise ValueError(f"num_problems: {self.num_problems} is negative")
        for name in ("concurrency", "max_tokens", "tries", "request_limit_s", "limit_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if not 0.0 <= self.gate <= 1.0:
            raise ValueError(f"gate: {self.gate} is not between 0 and 1")
        if self.gated not in ("flexible", "strict"):
            raise ValueError(f"gated: {self.gated!r} is neither flexible nor strict")

    def of(self, model: str) -> "Gsm8kPlan":
        """The same, asked of ``model``."""
        return replace(self, model=model)


StoppedWithin = Callable[[float], Awaitable[bool]]
"""Waits so many seconds, less if the run is stopped; whether it is."""


async def run_gsm8k(
    plan: Gsm8kPlan,
    environment: Mapping[str, str],
    stopped_within: StoppedWithin,
    api_key: str | None = None,
) -> Outcome:
    """``environment`` is passed on to lm-eval's process. Raises CannotMeasure when lm-eval is not
    installed, a request failed for good, the time was not enough, or the run was stopped."""
    if find_spec("lm_eval") is None:
        raise CannotMeasure("lm-eval is not installed; pip install 'baton[correctness]'")
    if plan.data is not None:
        read(plan.data)
    with tempfile.TemporaryDirectory(prefix="baton-gsm8k-") as name:
        result = await _run_job(plan, Path(name), environment, stopped_within, api_key)
    if "error" in result:
        tries = f" ({result['retries']} calls were made again)" if result["retries"] else ""
        raise CannotMeasure(f"lm-eval: {result['error']}{tries}")
    if plan.num_problems and result["num_problems"] < plan.num_problems:
        count = result["num_problems"]
        raise CannotMeasure(f"num_problems: {plan.num_problems} asked for, the data has {count}")
    return Outcome(
        "gsm8k_cot",
        result["num_problems"],
        {"flexible": result["flexible"], "strict": result["strict"]},
        plan.gated,
        plan.gate,
        result["wrong"],
        {name: result[name] for name in ("indices", "retries", "first_retry", "lm_eval")},
    )


async def _run_job(
    plan: Gsm8kPlan,
    folder: Path,
    environment: Mapping[str, str],
    stopped_within: StoppedWithin,
    api_key: str | None,
) -> dict[str, Any]:
    job, result = folder / "job.json", folder / "result.json"
    settings = vars(plan) | {"data": plan.data and str(plan.data.resolve())}
    job.write_text(json.dumps(settings | {"limit": plan.num_problems}))
    env = {**environment, "PYTHONPATH": str(_ROOT), "TOKENIZERS_PARALLELISM": "false"}
    if api_key:
        env["OPENAI_API_KEY"] = api_key
    if plan.data is not None:  # nothing is asked of the hub then, and nothing is kept
        env |= {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "bench.correctness.lm_eval_job", str(job), str(result)]
    process = await asyncio.create_subprocess_exec(*command, cwd=_ROOT, env=env, stdout=sys.stderr)
    ended = asyncio.create_task(process.wait())
    stopped = asyncio.create_task(_truth(stopped_within(plan.limit_s)))
    try:
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            why = "was stopped" if stopped.result() else f"was not done in {plan.limit_s:.0f} s"
            raise CannotMeasure(f"lm-eval {why}")
    finally:
        stopped.cancel()
        if process.returncode is None:
            process.kill()
        await asyncio.wait({ended}, timeout=_KILL_S)
    if not result.exists():
        raise CannotMeasure(f"lm-eval ended with code {process.returncode} and without a result")
    found: dict[str, Any] = json.loads(result.read_text())
    return found


async def _truth(stopped: Awaitable[bool]) -> bool:
    return await stopped
