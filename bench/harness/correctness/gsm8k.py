"""GSM8K-CoT through lm-evaluation-harness, in a process of its own with a time limit."""

import asyncio
import json
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.environment import ROOT
from bench.harness.cannot_measure import CannotMeasure
from bench.harness.conduct import Session
from bench.harness.correctness.outcome import CorrectnessSettings, Outcome
from bench.harness.correctness.problems import read_problems
from telemetry.version import install_command

_KILL_S = 10.0


async def run_gsm8k(
    settings: CorrectnessSettings, session: Session, api_key: str | None = None
) -> Outcome:
    """Run GSM8K. Raises CannotMeasure if lm-eval is not installed, a request failed after all
    tries, the time was not enough, or the run was stopped."""
    if find_spec("lm_eval") is None:
        raise CannotMeasure(f"lm-eval is not installed: {install_command('correctness')}")
    if settings.data is not None:
        read_problems(settings.data)
    with tempfile.TemporaryDirectory(prefix="baton-gsm8k-") as name:
        result = await _run_job(settings, session, Path(name), api_key)
    if "error" in result:
        tries = f" ({result['retries']} calls were made again)" if result["retries"] else ""
        raise CannotMeasure(f"lm-eval: {result['error']}{tries}")
    count, wanted = result["num_problems"], settings.num_problems
    if wanted and count < wanted:
        raise CannotMeasure(f"num_problems: {wanted} asked for, the data has {count}")
    scores = {match: result[match] for match in ("flexible", "strict")}
    details = {name: result[name] for name in ("indices", "retries", "first_retry", "lm_eval")}
    return Outcome("gsm8k_cot", count, scores, settings, result["wrong"], details)


async def _run_job(
    settings: CorrectnessSettings, session: Session, folder: Path, api_key: str | None
) -> dict[str, Any]:
    job, result, data = folder / "job.json", folder / "result.json", settings.data
    fields = settings.json() | {"data": data and str(data.resolve()), "model": session.server.model}
    job.write_text(json.dumps(fields | {"url": session.server.url}))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    if api_key:
        env["OPENAI_API_KEY"] = api_key
    if data is not None:  # nothing is asked of the hub then, and nothing is kept
        env |= {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "bench.harness.correctness.lm_eval_job", str(job), str(result)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=env, stdout=sys.stderr)
    ended = asyncio.create_task(process.wait())
    stopped = asyncio.create_task(session.control.stopped_within(settings.limit_s))
    try:
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            limit = f"was not done in {settings.limit_s:.0f} s"
            raise CannotMeasure(f"lm-eval {'was stopped' if stopped.result() else limit}")
    finally:
        stopped.cancel()
        if process.returncode is None:
            process.kill()
        await asyncio.wait({ended}, timeout=_KILL_S)
    if not result.exists():
        raise CannotMeasure(f"lm-eval ended with code {process.returncode} and without a result")
    found: dict[str, Any] = json.loads(result.read_text())
    return found
