"""Word problems at temperature 0: GSM8K through lm-eval, or the problems of the bundled model."""

from collections.abc import Sequence
from typing import Any

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.asking import chat
from bench.harness.client.reading import read
from bench.harness.client.record import Failure
from bench.harness.conduct import Session
from bench.harness.correctness.gsm8k import run_gsm8k
from bench.harness.correctness.outcome import CorrectnessSettings, Outcome
from bench.harness.correctness.problems import BUNDLED, flexible, read_problems, strict
from bench.harness.loops import closed_loop
from bench.harness.options import Target


async def correctness(settings: CorrectnessSettings, target: Target, session: Session) -> Outcome:
    """Word problems at temperature 0 through /v1/chat/completions.

    Exit status: 0 the gate is met, 1 it is not, 2 nothing could be measured, 130 interrupted.
    """
    if settings.suite == "gsm8k":
        session.progress.say(f"{settings.num_problems or 'all'} problems, seed {settings.seed}")
        return await run_gsm8k(settings, session, target.api_key)
    return await ask_bundled(settings, session, read_problems(settings.data or BUNDLED))


async def ask_bundled(
    settings: CorrectnessSettings, session: Session, problems: Sequence[tuple[str, str]]
) -> Outcome:
    """Ask every problem once. Raises CannotMeasure naming the first request that failed: the share
    of the answered ones alone would be no measurement."""
    session.progress.begin("bundled problems", len(problems))
    fields: dict[str, Any] = {"stream": False, "max_tokens": settings.max_tokens, "temperature": 0}
    asks = [chat(session.server.model, question, **fields) for question, _ in problems]

    def on_end(failed: bool) -> None:
        session.progress.step(failed)
        if failed:
            session.control.stop("a request failed")

    exchanges = await closed_loop(
        session.client, asks, settings.concurrency, session.control, on_end
    )
    texts = []
    for index, exchange in enumerate(exchanges):
        if exchange is not None and (record := read(exchange)).failure is not Failure.CANCELLED:
            if record.failure is not None:
                raise CannotMeasure(f"problem {index}: {record.failure.value}: {record.detail}")
            texts.append(record.text)
    if len(texts) < len(problems):
        raise CannotMeasure(f"{len(texts)} of {len(problems)}: {session.control.stopped}")
    finals = [final for _, final in problems]
    right = {
        "strict": [strict(t) == final for t, final in zip(texts, finals, strict=True)],
        "flexible": [flexible(t) == final for t, final in zip(texts, finals, strict=True)],
    }
    wrong = [
        {"problem": index, "expected": finals[index], "answer": texts[index][-300:]}
        for index, is_right in enumerate(right[str(settings.gated)])
        if not is_right
    ]
    scores = {match: sum(found) / len(problems) for match, found in right.items()}
    return Outcome("bundled", len(problems), scores, settings, wrong)
