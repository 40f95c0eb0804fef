"""Deltas of text: joined, they are what the tokenizer decodes in one go."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from coordinator.core.contract import SequenceRequest
from coordinator.http.choice import Delta, choices_of
from coordinator.http.request_schemas import CompletionRequest
from coordinator.text.detokenizer import Detokenizer
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.checkpoint_folder import make_backend
from tests.coordinator.fake_core import FakeStream
from tests.coordinator.text.test_stops import expected
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

BACKEND = make_backend()
NUM_IDS = BACKEND.get_vocab_size(with_added_tokens=True)
IDS = st.lists(st.integers(0, NUM_IDS + 5), max_size=40)


def detokenized(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> list[str]:
    skip_ids = tokenizer.special_ids if skip else frozenset[int]()
    detokenizer = Detokenizer(tokenizer.token_bytes, skip_ids)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@given(ids=IDS, skip=st.booleans())
def test_random_tokens(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    text = "".join(detokenized(tokenizer, ids, skip=skip))
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=40))
def test_any_text_comes_back_without_a_broken_character(tokenizer: Tokenizer, text: str) -> None:
    deltas = detokenized(tokenizer, tokenizer.encode(text), skip=False)
    assert "".join(deltas) == text
    assert sum(delta.count("\ufffd") for delta in deltas) == text.count("\ufffd")


async def deltas_of(
    tokenizer: Tokenizer, ids: list[int], stops: list[str], *, include_stop: bool = False
) -> tuple[list[Delta], FakeStream]:
    rule = StopRule(max_tokens=len(ids))
    spec = SequenceRequest("g", packed((0,)), SamplingParams(), rule)
    stream = FakeStream(spec, ids, None, None)
    request = CompletionRequest(
        prompt=Raw(b'""'), stop=stops, include_stop_str_in_output=include_stop
    )
    (choice,) = choices_of(request, [spec], [stream], tokenizer)
    return [delta async for delta in choice.deltas()], stream


@given(
    ids=st.lists(st.integers(0, NUM_IDS - 1), min_size=1, max_size=30),
    stops=st.lists(st.sampled_from(["e", "th", "the ", "\ufffd", "日", "o w", "</think>"])),
    include_stop=st.booleans(),
)
async def test_a_choice_is_the_decode_cut_at_the_first_stop_string(
    tokenizer: Tokenizer, ids: list[int], stops: list[str], include_stop: bool
) -> None:
    deltas, stream = await deltas_of(tokenizer, ids, stops, include_stop=include_stop)
    text, stopped = expected(tokenizer.decode(ids), stops, include_stop=include_stop)
    assert "".join(delta.text for delta in deltas) == text
    # A stop string that only the final flush completes is still a stop.
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish == ("stop" if stopped else "length")
    assert all(delta.text for delta in deltas[:-1])
    tokens = [token.token_id for delta in deltas for token in delta.tokens]
    assert tokens == ids[: len(tokens)]
    assert stopped or tokens == ids
    assert stream.outcome == ("stopped" if stopped else "finished")


async def test_offsets_say_where_each_tokens_text_begins(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("über 🙂 and out")
    deltas, _ = await deltas_of(tokenizer, ids, [])
    offsets = [offset for delta in deltas for offset in delta.offsets]
    for at, offset in enumerate(offsets):
        assert tokenizer.decode(ids[:at]).rstrip("\ufffd") == tokenizer.decode(ids)[:offset]
