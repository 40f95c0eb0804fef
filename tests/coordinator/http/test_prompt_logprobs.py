"""Log-probabilities of prompts over HTTP, from a core whose rows are known (fake_core.py)."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from coordinator.core.contract import SequenceRequest
from coordinator.http.prompt_logprobs import WRITTEN_PER_TURN, PromptLogprobsWriter
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error, events, post
from tests.coordinator.fake_core import ClientOf, Says, prompt_rows
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

IDS = [72, 73, 74, 75]
TEXT = "HIJK"


async def test_echo_with_logprobs(says: Says, client_of: ClientOf, tokenizer: Tokenizer) -> None:
    core = says("ok")
    answer = await post(client_of(core), COMPLETIONS, prompt=IDS, echo=True, logprobs=2)
    (choice,) = answer["choices"]
    before = tokenizer.decode(IDS)
    assert choice["text"] == before + "ok"
    found = choice["logprobs"]
    names = [tokenizer.decode([token_id]) for token_id in IDS]
    num = len(core.streams[0].script)
    assert found["tokens"][:4] == names
    assert found["token_logprobs"] == [None, -0.25, -0.5, -0.75] + [-0.5] * num
    assert {len(each) for each in found.values()} == {4 + num}
    best = {tokenizer.decode([65]): -1.0, tokenizer.decode([66]): -2.0}
    assert found["top_logprobs"][:4] == [
        None,
        *(best | {name: -position / 4} for position, name in enumerate(names[1:], start=1)),
    ]
    ends = [len("".join(names[:i])) for i in range(4)]
    assert found["text_offset"][:6] == [*ends, len(before), len(before) + 1]
    assert "prompt_logprobs" not in choice
    assert core.streams[0].spec.sampling.prompt_logprobs == 2


async def test_echo_streams_the_prompt_first(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("ok!"))
    body = {"prompt": [IDS, IDS[:2]], "echo": True, "logprobs": 1, "n": 2, "temperature": 0}
    whole = await post(client, COMPLETIONS, **body)
    chunks = await events(client, COMPLETIONS, **body)
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert len(parts) > 1
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [each for part in parts for each in part["logprobs"][name]] == values
        assert parts[0]["logprobs"]["token_logprobs"][:2] == [None, -0.25]


async def test_echo_without_logprobs_computes_none(says: Says, client_of: ClientOf) -> None:
    core = says("ok")
    client = client_of(core)
    await post(client, COMPLETIONS, prompt=IDS, echo=True)
    await post(client, COMPLETIONS, prompt=IDS, logprobs=2)
    await post(client, CHAT, messages=USER, logprobs=True, top_logprobs=2)
    assert [stream.spec.sampling.prompt_logprobs for stream in core.streams] == [None] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_0_gives_the_prompt_alone(
    says: Says, client_of: ClientOf, tokenizer: Tokenizer, stream: bool
) -> None:
    core = says("never seen")
    client = client_of(core)
    body: dict[str, Any] = {"prompt": IDS, "echo": True, "logprobs": 0, "max_tokens": 0}
    if stream:
        *chunks, usage = await events(
            client, COMPLETIONS, **body, stream_options={"include_usage": True}
        )
        (answer,) = chunks
        answer["usage"] = usage["usage"]
    else:
        answer = await post(client, COMPLETIONS, **body)
    (choice,) = answer["choices"]
    assert choice["text"] == tokenizer.decode(IDS)
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.5, -0.75]
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == len(IDS)
    assert core.streams[0].spec.stop.max_tokens == 1
    assert core.outcomes == ["finished"]


async def test_max_tokens_0_with_echo_alone_and_with_prompt_logprobs_alone(
    says: Says, client_of: ClientOf, tokenizer: Tokenizer
) -> None:
    client = client_of(says("x"))
    answer = await post(client, COMPLETIONS, prompt=IDS, echo=True, max_tokens=0)
    assert answer["choices"][0]["text"] == tokenizer.decode(IDS)
    assert answer["choices"][0]["logprobs"] is None
    answer = await post(client, COMPLETIONS, prompt=IDS, prompt_logprobs=0, max_tokens=0)
    assert answer["choices"][0]["text"] == ""
    assert [entry and len(entry) for entry in answer["choices"][0]["prompt_logprobs"]] == [
        None, 1, 1, 1,
    ]  # fmt: skip
    for field in ("max_tokens", "max_completion_tokens"):
        chat = await post(client, CHAT, messages=USER, prompt_logprobs=1, **{field: 0})
        assert chat["choices"][0]["message"]["content"] == ""
        assert chat["usage"]["completion_tokens"] == 0


async def test_vllms_field(says: Says, client_of: ClientOf, tokenizer: Tokenizer) -> None:
    answer = await post(client_of(says("ok")), COMPLETIONS, prompt=[72, 66], prompt_logprobs=2)
    first, second = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    assert list(second) == ["66", "65"], "its own first"
    own, other = second["66"], second["65"]
    # Id 66 is also the second of the most probable, which says its rank.
    assert own == {"logprob": -2.0, "rank": 2, "decoded_token": tokenizer.decode([66])}
    assert other == {"logprob": -1.0, "rank": 1, "decoded_token": tokenizer.decode([65])}
    assert answer["choices"][0]["logprobs"] is None


async def test_both_at_once_have_as_many_alternatives_as_each_asks_for(
    says: Says, client_of: ClientOf
) -> None:
    core = says("ok")
    answer = await post(
        client_of(core), COMPLETIONS, prompt=IDS, echo=True, logprobs=1, prompt_logprobs=3
    )
    (choice,) = answer["choices"]
    assert core.streams[0].spec.sampling.prompt_logprobs == 3
    assert [len(each) for each in choice["prompt_logprobs"][1:]] == [4] * 3
    assert [len(each) for each in choice["logprobs"]["top_logprobs"][1:4]] == [2] * 3


async def test_a_chat_has_its_prompts_once(says: Says, client_of: ClientOf) -> None:
    core = says("ok")
    answer = await post(client_of(core), CHAT, messages=USER, prompt_logprobs=1, n=3)
    num_prompt = len(core.streams[0].spec.prompt_ids)
    assert len(answer["prompt_logprobs"]) == num_prompt
    assert answer["prompt_logprobs"][0] is None
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])
    asked = [stream.spec.sampling.prompt_logprobs for stream in core.streams]
    assert asked == [1, None, None]


@pytest.mark.parametrize(
    "prompt", ["HI", ["HI", "J"], IDS, [IDS, [72]]], ids=["text", "texts", "ids", "lists"]
)
async def test_all_four_shapes_of_prompt(says: Says, client_of: ClientOf, prompt: Any) -> None:
    core = says("ok")
    answer = await post(
        client_of(core), COMPLETIONS, prompt=prompt, echo=True, logprobs=1, max_tokens=0, n=2
    )
    lengths = [len(stream.spec.prompt_ids) for stream in core.streams]
    found = [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]]
    assert [len(each) for each in found] == lengths
    assert all(each == [None, *(-i / 4 for i in range(1, len(each)))] for each in found)


async def test_names_can_be_ids(says: Says, client_of: ClientOf) -> None:
    answer = await post(
        client_of(says("ok")), COMPLETIONS, prompt=IDS, echo=True, logprobs=1, max_tokens=0,
        return_tokens_as_token_ids=True,
    )  # fmt: skip
    found = answer["choices"][0]["logprobs"]
    assert found["tokens"] == [f"token_id:{i}" for i in IDS]
    assert found["top_logprobs"][1] == {"token_id:65": -1.0, "token_id:73": -0.25}


async def test_a_character_of_several_tokens(says: Says, client_of: ClientOf) -> None:
    core = says("ok")
    answer = await post(
        client_of(core), COMPLETIONS, prompt="a🙂b", echo=True, logprobs=0, max_tokens=0
    )
    found = answer["choices"][0]["logprobs"]
    assert answer["choices"][0]["text"] == "a🙂b"
    assert any(name.startswith("bytes:") for name in found["tokens"])
    assert (found["text_offset"][0], found["text_offset"][-1]) == (0, 2)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (COMPLETIONS, {"echo": True, "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ],
)
async def test_what_is_refused(
    checked_client: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    prompt = {"messages": USER} if path == CHAT else {"prompt": IDS}
    check_error(await checked_client.post(path, json=prompt | fields), 400, param)


async def test_too_many_are_refused_with_the_numbers(says: Says, client_of: ClientOf) -> None:
    core = says("ok")
    client = client_of(core, max_prompt_logprobs=3 * 21 * 2)
    body = {"prompt": IDS, "echo": True, "logprobs": 20, "n": 2, "max_tokens": 1}
    await post(client, COMPLETIONS, **body)
    response = await client.post(COMPLETIONS, json=body | {"n": 3})
    error = check_error(response, 400, "logprobs")
    numbers = "9 tokens of prompts in all choices with 21 log-probabilities each are 189; an answer"
    assert f"{numbers} has at most 126" in error["message"]
    assert len(core.streams) == 2
    both = body | {"n": 1, "prompt_logprobs": 20}
    await post(client, COMPLETIONS, **both)
    error = check_error(await client.post(COMPLETIONS, json=both | {"n": 2}), 400)
    assert (
        "6 tokens of prompts in all choices with 42 log-probabilities each are 252"
        in error["message"]
    )


def test_they_count_as_held_until_the_response_is_over() -> None:
    silent = SequenceRequest("r", packed(IDS), SamplingParams(), StopRule(1))
    asks = SequenceRequest("r", packed(IDS), SamplingParams(prompt_logprobs=1), StopRule(1))
    assert silent.num_held == 4
    assert asks.num_held == 4 + 25 * 3 * 2


async def test_long_prompts_leave_the_event_loop_to_others(tokenizer: Tokenizer) -> None:
    """Half a million log-probabilities are made in many turns of the loop."""
    ids = packed(range(65, 90)) * 5_000
    spec = SequenceRequest("r", ids, SamplingParams(prompt_logprobs=1), StopRule(1))
    reader = PromptLogprobsWriter(ids, tokenizer.token_bytes, num_echoed=1, num_own=1)
    rows = prompt_rows(spec)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    began = time.monotonic()
    made = await reader.read(rows)
    print(f"{len(ids)} tokens took {time.monotonic() - began:.2f} s")
    counting.cancel()
    assert turns >= 2 * len(ids) / WRITTEN_PER_TURN - 1
    assert made.echoed["token_logprobs"].count(b",") == len(ids) - 1
