"""Prompts: exact lengths with a real tokenizer, and sums that can be checked."""

import random
from pathlib import Path

import pytest

from bench.harness.workload.prompts import PromptsFailed, SpotCheck, random_text, spot_check
from bench.harness.workload.tokens import LocalTokens, TokenizerMissing
from tests.bench.letters import Letters

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"


@pytest.mark.parametrize("length", [1, 2, 17, 300])
async def test_a_random_prompt_has_exactly_the_length_a_server_will_count(length: int) -> None:
    tokens, draw = LocalTokens(TINY), random.Random(3)
    texts = [await random_text(tokens, length, draw) for _ in range(5)]
    assert [len(await tokens.encode(text)) for text in texts] == [length] * 5
    assert len(set(texts)) == 5 or length < 3


def test_ids_are_drawn_from_the_whole_vocabulary_without_specials() -> None:
    tokens = LocalTokens(TINY)
    drawn = set(tokens.draw(random.Random(0), 100_000))
    assert drawn == set(range(1280))  # models/tiny has its special tokens from 1280 on


async def test_a_length_that_no_text_has_is_an_error() -> None:
    class Odd(Letters):
        async def encode(self, text: str) -> list[int]:
            return [0, 1]

    with pytest.raises(PromptsFailed, match="no text of 3 tokens in 200 rounds; the nearest: 2"):
        await random_text(Odd(), 3, random.Random(0))


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerMissing, match=r"tokenizer.json"):
        LocalTokens(tmp_path)


async def test_a_sum_fills_its_length_with_worked_ones() -> None:
    tokens = LocalTokens(TINY)
    check = await spot_check(tokens, 200, random.Random(5))
    a, _, b, _ = check.question.split()
    assert check.expected == int(a) + int(b)
    assert check.prompt.endswith(check.question)
    assert 180 <= len(await tokens.encode(check.prompt)) <= 200


@pytest.mark.parametrize(
    ("answer", "passes"), [(" 59", True), ("59\n1 + 1 = 2", True), ("60 or 59", False), ("", False)]
)
def test_the_first_number_is_the_answer(answer: str, passes: bool) -> None:
    assert SpotCheck("", "13 + 46 =", 59).passes(answer) is passes
