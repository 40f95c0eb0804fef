"""Fields of vLLM's that change an answer, and what each of them does."""

from typing import Any

import httpx
import pytest

from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error, events, post
from tests.coordinator.fake_core import ClientOf, Says

TOKENIZE = "/tokenize"
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": USER}, COMPLETIONS: {"prompt": "Hi"}}


async def test_integers_may_be_written_as_floats(says: Says, client_of: ClientOf) -> None:
    core = says()
    body = b'{"prompt": "x", "max_tokens": 5.0, "seed": 3e2, "top_k": 4.0, "stop_token_ids": [7.0]}'
    response = await client_of(core).post(COMPLETIONS, content=body)
    assert response.status_code == 200, response.text
    spec = core.streams[0].spec
    assert (spec.stop.max_tokens, spec.sampling.seed, spec.sampling.top_k) == (5, 300, 4)
    assert 7 in spec.stop.stop_token_ids


async def test_the_reason_of_a_stop_is_told(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("one two three"))

    async def reason(**fields: Any) -> tuple[str, Any]:
        choice = (await post(client, COMPLETIONS, prompt="x", **fields))["choices"][0]
        chunks = [c["choices"][0] for c in await events(client, COMPLETIONS, prompt="x", **fields)]
        assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == (
            choice["finish_reason"],
            choice["stop_reason"],
        )
        assert not any("stop_reason" in chunk for chunk in chunks[:-1])
        return choice["finish_reason"], choice["stop_reason"]

    ids = (await client.post(TOKENIZE, json={"prompt": "one two three"})).json()["tokens"]
    assert await reason() == ("stop", None)
    assert await reason(max_tokens=2) == ("length", None)
    assert await reason(stop=["three", " two"]) == ("stop", " two")
    assert await reason(stop_token_ids=[ids[1]]) == ("stop", ids[1])
    assert await reason(stop_token_ids=[ids[1]], include_stop_str_in_output=True) == (
        "stop",
        ids[1],
    )
    chat = await post(client, CHAT, messages=USER, stop="three")
    assert chat["choices"][0]["stop_reason"] == "three"
    chunks = await events(client, CHAT, messages=USER, stop="three")
    assert chunks[-1]["choices"][0]["stop_reason"] == "three"


async def test_an_output_that_repeats_itself_ends(says: Says, client_of: ClientOf) -> None:
    core = says("abcd" * 40)
    client = client_of(core)
    wanted = {"max_pattern_size": 6, "min_pattern_size": 2, "min_count": 3}
    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "x"})):
        answer = await post(client, path, max_tokens=300, repetition_detection=wanted, **body)
        choice = answer["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == (
            "repetition",
            "repetition_detected",
        )
        assert 6 <= answer["usage"]["completion_tokens"] <= 18
    assert set(core.outcomes) == {"stopped"}
    answer = await post(
        client, COMPLETIONS, prompt="x", max_tokens=300, min_tokens=20, repetition_detection=wanted
    )
    assert answer["usage"]["completion_tokens"] == 21
    off = await post(client, COMPLETIONS, prompt="x", repetition_detection={"max_pattern_size": 0})
    assert off["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "wanted",
    [{"max_pattern_size": 4, "min_count": 1}, {"max_pattern_size": 1, "min_pattern_size": 2},
     {"max_pattern_size": -1}, {"max_pattern_size": 10**6, "min_count": 2}],
)  # fmt: skip
async def test_a_repetition_that_cannot_be_looked_for_is_refused(
    checked_client: httpx.AsyncClient, wanted: dict[str, int]
) -> None:
    body = {"prompt": "x", "repetition_detection": wanted}
    error = check_error(await checked_client.post(COMPLETIONS, json=body), 400)
    assert error["param"].startswith("repetition_detection")


async def test_prompts_are_truncated_where_it_is_asked_for(says: Says, client_of: ClientOf) -> None:
    core = says(max_seq_len=512)
    client = client_of(core)
    text = "The quick brown fox " * 150
    ids = (await client.post(TOKENIZE, json={"prompt": text})).json()["tokens"]
    assert len(ids) > 512

    async def prompt(path: str = COMPLETIONS, **fields: Any) -> list[int]:
        if path == COMPLETIONS:
            fields.setdefault("prompt", text)
        await post(client, path, **fields)
        return list(core.streams[-1].spec.prompt_ids)

    assert await prompt(truncate_prompt_tokens=20) == ids[-20:]
    assert await prompt(prompt=ids, truncate_prompt_tokens=20) == ids[-20:]
    assert await prompt(truncate_prompt_tokens=20, truncation_side="left") == ids[-20:]
    assert await prompt(truncate_prompt_tokens=20, truncation_side="right") == ids[:20]
    assert await prompt(truncate_prompt_tokens=-1, max_tokens=12) == ids[-500:]
    assert await prompt(prompt=ids[:9], truncate_prompt_tokens=20) == ids[:9]
    chat = await prompt(CHAT, messages=[{"role": "user", "content": text}], max_tokens=2,
                        truncate_prompt_tokens=-1)  # fmt: skip
    assert len(chat) == 510
    echoed = await post(client, COMPLETIONS, prompt=text, echo=True, truncate_prompt_tokens=3)
    tail = (await client.post("/detokenize", json={"tokens": ids[-3:]})).json()["prompt"]
    assert echoed["choices"][0]["text"].startswith(tail)
    for fields in ({"truncate_prompt_tokens": 600}, {"truncate_prompt_tokens": 0}, {}):
        response = await client.post(COMPLETIONS, json={"prompt": text, **fields})
        check_error(response, 400, "prompt")


async def test_the_last_message_is_continued(says: Says, client_of: ClientOf) -> None:
    core = says()
    client = client_of(core)
    begun = [*USER, {"role": "assistant", "content": "Once upon a "}]
    await post(client, CHAT, messages=begun, continue_final_message=True)
    ids = list(core.streams[-1].spec.prompt_ids)
    text = (await client.post("/detokenize", json={"tokens": ids})).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\nOnce upon a ")
    looked_up = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
    assert (await client.post(TOKENIZE, json=looked_up)).json()["tokens"] == ids
    for path in (CHAT, TOKENIZE):
        for fields in (
            {"messages": begun, "add_generation_prompt": True},
            {"messages": [*USER, {"role": "assistant"}]},
        ):
            body = {"continue_final_message": True, **fields}
            check_error(await client.post(path, json=body), 400, "continue_final_message")


async def test_a_long_conversation_is_continued_too(says: Says, client_of: ClientOf) -> None:
    """Another process reads it, and this one reads what is left of its request."""
    core = says()
    body = {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once"}],
        "continue_final_message": True, "truncate_prompt_tokens": 8, "unknown": "x" * 70_000,
    }  # fmt: skip
    response = await client_of(core).post(CHAT, json=body)
    assert response.status_code == 200, response.text
    assert len(core.streams[0].spec.prompt_ids) == 8


async def test_tokens_are_named_by_their_ids(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("one"))
    fields = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    answer = await post(client, COMPLETIONS, prompt="x", logprobs=2, **fields)
    choice = answer["choices"][0]
    names = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    assert set(choice["logprobs"]["top_logprobs"][0]) >= {names[0]}
    answer = await post(client, CHAT, messages=USER, logprobs=True, top_logprobs=1, **fields)
    entry = answer["choices"][0]["logprobs"]["content"][0]
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == (names[0], names[0])
    assert bytes(entry["bytes"]).decode()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_token_without_text_is_a_chunk_where_ids_are_asked_for(
    says: Says, client_of: ClientOf, path: str
) -> None:
    client = client_of(says("ok 🙂"))
    chunks = await events(client, path, **BODIES[path], return_token_ids=True)
    ids = [chunk["choices"][0]["token_ids"] for chunk in chunks]
    assert [len(some) for some in ids] == [1] * len(ids)
    texts = [c["choices"][0].get("text", c["choices"][0].get("delta", {}).get("content", ""))
             for c in chunks]  # fmt: skip
    assert "".join(texts) == "ok 🙂"
    assert "" in texts[1:-1]


async def test_chunks_have_as_many_tokens_as_asked_for(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("abcdefghijklmnopqrstuvwxyz"))
    body = {"prompt": "x", "max_tokens": 20, "return_token_ids": True, "stream_interval": 6}
    chunks = await events(client, COMPLETIONS, **body)
    assert [len(c["choices"][0]["token_ids"]) for c in chunks] == [1, 6, 6, 6, 1]


async def test_special_tokens_are_added_to_a_chat_where_it_is_asked_for(
    says: Says, client_of: ClientOf
) -> None:
    """This tokenizer adds none; the field reaches it, or it would be unknown."""
    client = client_of(says())
    for value in (True, False):
        response = await client.post(CHAT, json={"messages": USER, "add_special_tokens": value})
        assert response.status_code == 200
    wrong = await client.post(CHAT, json={"messages": USER, "add_special_tokens": "yes"})
    check_error(wrong, 400, "add_special_tokens")


async def test_tokenize_gives_what_a_chat_would_have(says: Says, client_of: ClientOf) -> None:
    core = says()
    client = client_of(core)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for fields in (
        {"tools": [tool]}, {"chat_template_kwargs": {"enable_thinking": True}},
        {"add_generation_prompt": False}, {"tools": [tool], "add_generation_prompt": True},
    ):  # fmt: skip
        await post(client, CHAT, messages=USER, **fields)
        response = await client.post(TOKENIZE, json={"messages": USER, **fields})
        assert response.json()["tokens"] == list(core.streams[-1].spec.prompt_ids)
    response = await client.post(TOKENIZE, json={"prompt": "Hi é", "return_token_strs": True})
    found = response.json()
    assert len(found["token_strs"]) == found["count"]
    assert "".join(found["token_strs"]).startswith("Hi")
    assert "token_strs" not in (await client.post(TOKENIZE, json={"prompt": "Hi"})).json()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_client_names_its_response(says: Says, client_of: ClientOf, path: str) -> None:
    core = says()
    client = client_of(core)
    prefix = "chatcmpl-" if path == CHAT else "cmpl-"
    body = BODIES[path]
    named = {"headers": {"x-request-id": "order-66"}}
    for _ in range(2):  # an id may come twice; the core's ids differ
        response = await client.post(path, json=body, **named)  # type: ignore[arg-type]
        assert response.json()["id"] == f"{prefix}order-66"
        assert response.headers["x-request-id"] == "order-66"
    response = await client.post(path, json=body | {"request_id": "mine"})
    assert response.json()["id"] == f"{prefix}mine"
    response = await client.post(path, json=body | {"request_id": "mine"}, **named)  # type: ignore[arg-type]
    assert response.json()["id"] == f"{prefix}order-66", "the header goes first, as with vLLM"
    unnamed = await client.post(path, json=body)
    assert unnamed.json()["id"] == prefix + core.streams[-1].spec.request_id
    check_error(await client.post(path, json=body | {"request_id": "a b"}), 400, "request_id")
