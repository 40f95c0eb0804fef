"""Tokens that open responses hold: counted until they are over, and bounded."""

import pytest

from coordinator.core.contract import Overloaded, Token
from coordinator.core.effects import Stream
from coordinator.core.open_tokens import OpenTokens, tokens_that_fit
from transport.wire.reports import LogprobsOut


def stream(tokens: OpenTokens, num_prompt: int, *, until_end: bool = False) -> Stream:
    hold = tokens.hold(num_prompt, until_end=until_end)
    return Stream(hold, stop_early=lambda: None, cancel=lambda: None)


def test_a_prompt_beyond_the_most_is_refused_until_another_response_is_over() -> None:
    tokens = OpenTokens(100)
    first = stream(tokens, 60)
    with pytest.raises(Overloaded, match="hold 60 tokens, and with 41 more") as refused:
        stream(tokens, 41)
    assert refused.value.retry_after_s > 0
    assert tokens.num_held == 60
    stream(tokens, 40)
    first.cancel()
    assert tokens.num_held == 40
    stream(tokens, 60)


async def test_tokens_that_wait_for_their_reader_count_for_what_they_take() -> None:
    tokens = OpenTokens(1000)
    one = stream(tokens, 10)
    one.push(Token(7))
    one.push(Token(8, LogprobsOut(-0.5, ((8, -0.5), (9, -1.0)))))
    assert tokens.num_held == 10 + 25 + 25 + 3 * 34
    await anext(one)
    await anext(one)
    assert tokens.num_held == 12
    one.end()
    assert tokens.num_held == 12, "the response is not over"
    one.cancel()
    one.cancel()
    assert tokens.num_held == 0


async def test_tokens_of_a_response_in_one_piece_count_until_it_is_over() -> None:
    tokens = OpenTokens(1000)
    one = stream(tokens, 10, until_end=True)
    one.push(Token(7))
    await anext(one)
    assert tokens.num_held == 10 + 25
    one.cancel()
    one.push(Token(8))
    assert tokens.num_held == 0


def test_what_fits_follows_from_the_memory_of_machine_and_container(monkeypatch, tmp_path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("coordinator.core.open_tokens._CGROUP_LIMIT", limit)
    whole = tokens_that_fit()
    assert whole > 10**6
    limit.write_text("max\n")
    assert tokens_that_fit() == whole
    limit.write_text(f"{32 * 2**20}\n")
    assert tokens_that_fit() == 2**20
