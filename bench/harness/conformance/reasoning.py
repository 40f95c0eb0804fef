"""Checks: a thought apart from the answer, as vLLM and its clients have it."""

from typing import Any

from bench.harness.conformance.chat import no_think
from bench.harness.conformance.check import VLLM, Ask, chat, recommended
from bench.harness.conformance.server import NotOffered, Said, Server, require

_MAX_TOKENS = 512
_BUDGET = 8  # tokens
_MAX_BUDGET_LEN = 20 * _BUDGET  # characters, generously


def _ask(**fields: Any) -> Ask:
    return chat(**{"reasoning_effort": "high", "max_tokens": _MAX_TOKENS, **fields})


def _thought(said: Said) -> str:
    """The thought, under either of its two names."""
    return said.reasoning_content or said.reasoning or ""


async def _thinking(server: Server, **fields: Any) -> Said:
    """A message with a thought. Raises NotOffered without one: many models have none."""
    said = (await _ask(**fields)(server)).completion(optional=True).choice.message
    if said is None or not _thought(said):
        raise NotOffered("no reasoning_content or reasoning in the message")
    return said


async def apart(server: Server) -> str:
    said = await _thinking(server)
    no_think(_thought(said))
    no_think(said.content or "")
    return f"{len(_thought(said))} characters"


async def streamed(server: Server) -> None:
    whole = await _thinking(server)
    deltas = [
        choice.delta
        for chunk in (await _ask(stream=True)(server)).chunks()
        for choice in chunk.choices
        if choice.delta
    ]
    thought = "".join(map(_thought, deltas))
    require(thought, "no thought in the stream")
    require(thought.strip() == _thought(whole).strip(), f"{thought!r} is not {_thought(whole)!r}")
    kinds = [
        "thought" if _thought(each) else "answer"
        for each in deltas
        if _thought(each) or each.content
    ]
    require(kinds == sorted(kinds, reverse=True), "a thought after the answer has begun")


async def off(server: Server) -> None:
    await _thinking(server)
    said = (await _ask(reasoning_effort="none")(server)).completion(optional=True).choice.message
    require(said and not _thought(said), f"a thought with reasoning_effort none: {said}")


async def budget(server: Server) -> str:
    before = _thought(await _thinking(server))
    after = _thought(await _thinking(server, thinking_token_budget=_BUDGET))
    if after == before and len(after) > _MAX_BUDGET_LEN:
        raise NotOffered("thinking_token_budget changes nothing")
    require(len(after) <= _MAX_BUDGET_LEN, f"{len(after)} characters of thought: {after!r}")
    return f"{len(after)} characters"


async def left_out(server: Server) -> None:
    await _thinking(server)
    said = (await _ask(include_reasoning=False)(server)).completion(optional=True).choice.message
    require(said and not _thought(said), f"a thought in spite of include_reasoning: {said}")


CHECKS = (
    recommended("a thought is apart from the answer", apart, source=VLLM),
    recommended("a thought is streamed before the answer", streamed, source=VLLM),
    recommended("reasoning_effort none: no thought", off, source=VLLM),
    recommended("thinking_token_budget ends a thought", budget, source=VLLM),
    recommended("include_reasoning false leaves it out", left_out, source=VLLM),
)
