"""Where later prompts go on otherwise: against what the template makes of later conversations."""

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from coordinator.text.boundaries import Boundaries
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.answers import CHAT, COMPLETIONS, USER
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.little_work import little_work
from transport.wire.token_ids import TokenIds, packed

Message = dict[str, Any]
SYSTEM: Message = {"role": "system", "content": "Answer in one word."}
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tiny() -> Iterator[Tokenizer]:
    tokenizer = Tokenizer.load(Path(__file__).parents[3] / "models/tiny")
    yield tokenizer
    tokenizer.close()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, calls: int = 0) -> Message:
    call = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": {}}}
    return {"role": "assistant", "content": text, "tool_calls": [call] * calls}


def result(text: str) -> Message:
    return {"role": "tool", "tool_call_id": "1", "content": text}


LOOP = [answer("", 2), result("4"), result("5"), answer("Once more.", 1), result("6")]
FIRST = [SYSTEM, user("How many?")]
SECOND = [*FIRST, answer("Four."), user("Are you sure?")]


def shared(one: TokenIds, other: TokenIds) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("before", [FIRST, SECOND, [*FIRST, *LOOP], [*SECOND, *LOOP]])
def test_a_next_question_goes_on_at_a_boundary(
    tiny: Tokenizer, before: list[Message], thinking: bool
) -> None:
    variables = {"tools": TOOLS, "enable_thinking": thinking}
    prompt = tiny.encode_chat(before, variables=variables)
    after = tiny.encode_chat([*before, answer("Yes."), user("Why?")], variables=variables)
    common = shared(prompt, after)
    boundaries = tiny.boundaries.of(prompt)
    assert common in boundaries
    assert tiny.decode(prompt[:common], skip_special_tokens=False).endswith("assistant\n")
    assert len(boundaries) <= 4
    # The next question's own prompt has its boundary for the one after it further on.
    assert max(tiny.boundaries.of(after)) > len(prompt)


@pytest.mark.parametrize("before", [FIRST, [*FIRST, *LOOP], [*SECOND, *LOOP]])
def test_a_tool_loop_goes_on_behind_the_last_boundary(
    tiny: Tokenizer, before: list[Message]
) -> None:
    prompt = tiny.encode_chat(before, variables={"tools": TOOLS})
    step = [*before, answer("Hm.", 1), result("7")]
    assert shared(prompt, tiny.encode_chat(step, variables={"tools": TOOLS})) == len(prompt)
    last = tiny.boundaries.of(prompt)[-1]
    text = tiny.decode(prompt[last:], skip_special_tokens=False)
    assert text == "<think>\n\n</think>\n\n"


def test_another_conversation_goes_on_at_the_first_boundary(tiny: Tokenizer) -> None:
    variables = {"tools": TOOLS}
    prompt = tiny.encode_chat([*SECOND, *LOOP], variables=variables)
    first = tiny.boundaries.of(prompt)[0]
    assert tiny.decode(prompt[:first], skip_special_tokens=False).endswith(
        "Answer in one word.<|im_end|>\n"
    )
    other = tiny.encode_chat([SYSTEM, user("Who?")], variables=variables)
    assert other[:first] == prompt[:first]
    assert tiny.boundaries.of(other)[0] == first


def test_the_last_question_asked_otherwise_goes_on_at_a_boundary(tiny: Tokenizer) -> None:
    prompt = tiny.encode_chat([*SECOND, *LOOP])
    texts = [
        tiny.decode(prompt[num:], skip_special_tokens=False) for num in tiny.boundaries.of(prompt)
    ]
    assert any(text.startswith("<|im_start|>user\nAre you sure?<|im_end|>") for text in texts)
    assert len(texts) == 4


def test_without_a_system_prompt_nothing_is_shared_before_the_first_question(
    tokenizer: Tokenizer,
) -> None:
    (only,) = tokenizer.boundaries.of(prompt := tokenizer.encode_chat(USER))
    assert tokenizer.decode(prompt[only:]) == "<think>\n\n</think>\n\n"


def test_a_prompt_that_ends_with_a_question_or_within_an_answer(tokenizer: Tokenizer) -> None:
    ended = tokenizer.encode_chat(SECOND, add_generation_prompt=False)
    assert [tokenizer.decode(ended[num:]) for num in tokenizer.boundaries.of(ended)] == [
        "user\nHow many?\nassistant\nFour.\nuser\nAre you sure?\n",
        "Four.\nuser\nAre you sure?\n",
        "user\nAre you sure?\n",
    ]
    going_on = tokenizer.encode_chat([*FIRST, answer("Fo")], continue_final=True)
    assert tokenizer.decode(going_on[tokenizer.boundaries.of(going_on)[-1] :]) == "Fo"
    header = tokenizer.encode("Four.<|im_start|>assistant\n")
    assert len(header) not in tokenizer.boundaries.of(header)


def test_other_texts_and_other_tokenizers_have_none(tiny: Tokenizer) -> None:
    assert tiny.boundaries.of(tiny.encode("<|im_end|> How many user\n are an assistant\n?")) == ()
    assert tiny.boundaries.of(packed()) == ()
    header = tiny.encode("<|im_start|>user")
    bytes_between_ids = packed([7, *(token_id << 8 for token_id in header), 0, 7])
    assert tiny.boundaries.of(bytes_between_ids) == ()
    plain = Boundaries(Backend(models.BPE()))
    assert plain.of(tiny.encode_chat(SECOND)) == ()


@pytest.mark.parametrize("text", ["<|im_start|>", "<|im_start|>user\n<tool_response>", "four"])
def test_long_prompts_are_searched_in_little_time(tiny: Tokenizer, text: str) -> None:
    prompt = tiny.encode(text)
    prompt *= 131_072 // len(prompt)
    with little_work(0.5):
        assert len(tiny.boundaries.of(prompt)) <= 4


async def test_requests_of_all_chat_apis_have_them(
    says: Says, client_of: ClientOf, tokenizer: Tokenizer
) -> None:
    core = says("Four.")
    client = client_of(core)
    turns = [user("How many?"), answer("Four."), user("Are you sure?")]
    plain = [{key: turn[key] for key in ("role", "content")} for turn in turns]
    text, pad = SYSTEM["content"], " " * 70_000  # a body with so many spaces is heavy
    for path, body in (
        (CHAT, {"messages": [SYSTEM, *plain]}),
        (CHAT, {"messages": [SYSTEM, *plain], "n": 2}),
        ("/v1/responses", {"input": plain, "instructions": text, "store": False}),
        ("/v1/messages", {"messages": plain, "system": text, "max_tokens": 9, "model": "tiny"}),
    ):
        for content in (json.dumps(body), json.dumps(body) + pad):
            reply = await client.post(path, content=content)
            assert reply.status_code == 200, reply.text
    specs = [stream.spec for stream in core.streams]
    assert len(specs) == 10
    expected = tokenizer.boundaries.of(tokenizer.encode_chat([SYSTEM, *plain]))
    assert len(expected) == 3
    assert {spec.boundaries for spec in specs} == {expected}


async def test_completions_have_none(says: Says, client_of: ClientOf, tokenizer: Tokenizer) -> None:
    core = says("Four.")
    ids = tokenizer.encode_chat(SECOND).tolist()
    prompts: tuple[str | list[int], ...] = (tokenizer.decode(ids, skip_special_tokens=False), ids)
    for prompt in prompts:
        reply = await client_of(core).post(COMPLETIONS, json={"prompt": prompt})
        assert reply.status_code == 200
    assert [stream.spec.boundaries for stream in core.streams] == [(), ()]
