"""Chats encoded turn by turn: the same ids, each long turn once, and only for the same salt."""

import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers

from coordinator.text.tokenizer import Tokenizer
from coordinator.text.turn_ids import TurnIds
from tests.coordinator.checkpoint_folder import make_backend

TINY = Path(__file__).parents[3] / "models" / "tiny" / "tokenizer.json"
LONG = "long " * 100
PIECES = st.one_of(
    st.sampled_from(
        [
            "<|im_start|>",
            "<|im_end|>\n",
            "<think>",
            "user\n",
            "<|im_",
            "start|>",
            "<",
            "|>",
            " ",
            LONG,
        ]
    ),
    st.text(max_size=12),
)


class Counted:
    """A backend that notes what it encodes."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend, self.texts = backend, list[str]()

    def encode_batch_fast(self, texts: list[str], **options: bool) -> list[tokenizers.Encoding]:
        self.texts += texts
        return self.backend.encode_batch_fast(texts, **options)

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        return self.backend.get_added_tokens_decoder()


@pytest.fixture(scope="module", params=["bundled", "tests"])
def backend(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    if request.param == "tests":
        return make_backend()
    return tokenizers.Tokenizer.from_file(str(TINY))


@given(st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=4))
def test_the_ids_are_those_of_the_whole_text(
    backend: tokenizers.Tokenizer, texts: list[str]
) -> None:
    turns = TurnIds(backend)
    for text in [*texts, *texts]:
        whole = backend.encode(text, add_special_tokens=False).ids
        assert turns.encode(text, "").tolist() == whole


def test_a_long_turn_is_encoded_once_for_each_salt(backend: tokenizers.Tokenizer) -> None:
    counted = Counted(backend)
    turns = TurnIds(counted)  # type: ignore[arg-type]
    first = f"<|im_start|>system\n{LONG}<|im_end|>\n"
    second = f"<|im_start|>user\n{LONG}<|im_end|>\n"
    turns.encode(first + second[:50], "a")
    turns.encode(first + second, "a")
    assert counted.texts == [first, second[:50], second]
    turns.encode(first + second, "b")
    assert counted.texts[3:] == [first, second]


def test_the_turn_used_longest_ago_makes_room(backend: tokenizers.Tokenizer) -> None:
    counted = Counted(backend)
    texts = [f"<|im_start|>{name}{LONG}" for name in "abcdefghijklmnopqrstuvwxyz"]
    size = sys.getsizeof(texts[0]) + 4 * len(backend.encode(texts[0]).ids)
    turns = TurnIds(counted, max_kept=17 * size + 200)  # type: ignore[arg-type]
    a, b, *others = texts
    for text in (a, b, *others[:14], a, *others[14:16], a, b):
        turns.encode("x" + text, "")
    assert [text for text in counted.texts if text != "x"] == [a, b, *others[:16], b]


def test_a_turn_that_takes_too_much_is_not_kept(backend: tokenizers.Tokenizer) -> None:
    counted = Counted(backend)
    turns = TurnIds(counted, max_kept=20 * len(LONG))  # type: ignore[arg-type]
    for _ in range(2):
        turns.encode(f"x<|im_start|>{3 * LONG}", "")
    assert len(counted.texts) == 4


@pytest.mark.parametrize(
    "added",
    [
        [AddedToken("<|im_start|>", normalized=True)],
        [AddedToken("<|im_start|>", normalized=False, lstrip=True)],
        [AddedToken("<|im_start|>", normalized=False, rstrip=True)],
        [AddedToken("<|im_start|>", normalized=False, single_word=True)],
        [AddedToken(text, normalized=False) for text in ("<|im_start|>", "<|im_start|>user")],
        [AddedToken(text, normalized=False) for text in ("<|im_start|>", "xa<|im_")],
        [AddedToken("<s>", normalized=False)],
    ],
)
def test_a_text_is_encoded_whole_where_a_cut_could_change_it(added: list[AddedToken]) -> None:
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(letters, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_tokens(added)
    counted = Counted(backend)
    turns = TurnIds(counted)  # type: ignore[arg-type]
    for text in ("a <|im_start|>user b <|im_start|> c", "xa<|im_start|>user", "a<|im_start|>b"):
        assert turns.encode(text, "").tolist() == backend.encode(text).ids
    assert len(counted.texts) == 3


def test_a_text_without_a_salt_is_neither_looked_up_nor_kept(tokenizer: Tokenizer) -> None:
    text = f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n"
    known = set(tokenizer._turn_ids._known)
    ids = tokenizer.encode(text)
    assert set(tokenizer._turn_ids._known) == known
    assert tokenizer.encode(text, salt="of this test") == ids
    assert [salt for salt, _ in set(tokenizer._turn_ids._known) - known] == ["of this test"]
