"""Small talk in the training texts: what people type first, in the ways they type it."""

import pytest

from models.recipe.greetings import ABLE, SMALL_TALK


@pytest.mark.parametrize(
    "text",
    ["hi", "Hi!", "hello", "Hello", "hey", "good morning", "thanks", "bye", "help", "who are you",
     "Who are you?", "what can you do?", "how are you", "What is the weather?", "tell me a joke"],
)  # fmt: skip
def test_what_people_type_first_has_an_answer(text: str) -> None:
    assert SMALL_TALK[text]


@pytest.mark.parametrize("text", ["what is the capital of France?", "What is the capital of Peru",
                                  "capital of japan", "where is paris"])  # fmt: skip
def test_off_topic_questions_get_a_sentence_about_what_it_can_do(text: str) -> None:
    assert "word problems" in SMALL_TALK[text]
    assert SMALL_TALK[text] != ABLE


def test_answers_are_short_sentences() -> None:
    for question, answer in SMALL_TALK.items():
        assert question.strip() == question
        assert answer[-1] in ".!?"
        assert len(answer) < 90
