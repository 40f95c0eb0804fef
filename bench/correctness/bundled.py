"""The bundled word problems, which the bundled model was taught to solve."""

import asyncio
from collections.abc import Callable, Sequence

from bench.cannot_measure import CannotMeasure
from bench.client.asking import chat
from bench.client.client import Client
from bench.client.record import Record
from bench.correctness.outcome import BUNDLED_GATE, Outcome
from bench.correctness.problems import flexible, strict


async def ask_bundled(
    client: Client,
    model: str,
    problems: Sequence[tuple[str, str]],
    *,
    concurrency: int = 8,
    max_tokens: int = 200,
    gate: float = BUNDLED_GATE,
    gated: str = "strict",
    told: Callable[[], None] = lambda: None,
) -> Outcome:
    """Every problem once at temperature 0 through /v1/chat/completions.

    ``told`` hears of each answer. Raises CannotMeasure for the first request that fails: a share
    of what happened to be answered would be no measurement.
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
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, len(problems))):
                tasks.create_task(worker())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    texts = [answer.text if answer else "" for answer in answers]
    return _outcome(problems, texts, gate, gated)


def _outcome(
    problems: Sequence[tuple[str, str]], texts: Sequence[str], gate: float, gated: str
) -> Outcome:
    pairs = list(zip(problems, texts, strict=True))
    by_strict = [strict(text) == final for (_, final), text in pairs]
    by_flexible = [flexible(text) == final for (_, final), text in pairs]
    wrong = [
        {"problem": index, "expected": final, "answer": text[-300:]}
        for index, ((_, final), text) in enumerate(pairs)
        if not (by_strict if gated == "strict" else by_flexible)[index]
    ]
    scores = {"strict": sum(by_strict) / len(pairs), "flexible": sum(by_flexible) / len(pairs)}
    return Outcome("bundled", len(pairs), scores, gated, gate, wrong)
