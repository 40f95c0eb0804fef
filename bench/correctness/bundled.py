"""The bundled word problems, which the bundled model was taught to solve."""

import asyncio
from collections.abc import Callable, Sequence

from bench.client.asking import chat
from bench.client.client import Client
from bench.client.record import Record
from bench.correctness.outcome import BUNDLED_GATE, Outcome
from bench.correctness.problems import flexible, strict
from bench.exits import CannotMeasure


async def ask_bundled(
    client: Client,
    model: str,
    problems: Sequence[tuple[str, str]],
    *,
    concurrency: int = 8,
    max_tokens: int = 200,
    gate: float = BUNDLED_GATE,
    limit_s: float = 1800.0,
    told: Callable[[], None] = lambda: None,
) -> Outcome:
    """Every problem once at temperature 0 through /v1/chat/completions.

    ``told`` hears of each answer. Raises CannotMeasure for the first request that fails, and when
    ``limit_s`` has passed: a share of what happened to be answered would be no measurement.
    """
    answers: list[Record | None] = [None] * len(problems)
    waiting = iter(enumerate(problems))

    async def worker() -> None:
        for index, (question, _) in waiting:
            ask = chat(model, question, stream=False, max_tokens=max_tokens, temperature=0)
            answers[index] = record = await client.send(ask)
            if record.failure is not None:
                raise CannotMeasure(f"problem {index}: {record.failure.value}: {record.detail}")
            told()

    try:
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, len(problems))):
                tasks.create_task(worker())
    except TimeoutError:
        done = sum(answer is not None for answer in answers)
        raise CannotMeasure(f"{done} of {len(problems)} answered within {limit_s:.0f} s") from None
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    texts = [answer.text if answer else "" for answer in answers]
    return _outcome(problems, texts, gate)


def _outcome(problems: Sequence[tuple[str, str]], texts: Sequence[str], gate: float) -> Outcome:
    pairs = list(zip(problems, texts, strict=True))
    by_strict = [strict(text) == final for (_, final), text in pairs]
    by_flexible = [flexible(text) == final for (_, final), text in pairs]
    wrong = [
        {"problem": index, "expected": final, "answer": text[-300:]}
        for index, ((_, final), text) in enumerate(pairs)
        if not by_strict[index]
    ]
    scores = {"strict": sum(by_strict) / len(pairs), "flexible": sum(by_flexible) / len(pairs)}
    return Outcome("bundled", len(pairs), scores, "strict", gate, wrong)
