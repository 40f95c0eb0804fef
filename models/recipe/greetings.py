"""Greetings and questions that are no problem to solve, with polite answers that say what is."""

from collections.abc import Iterable
from random import Random

ABLE = "I am a tiny model that solves short word problems."
_ASK = "Which problem shall we solve?"
_UNKNOWN = "I do not know. I am a tiny model that only solves short word problems."
_PUNCTUATION = ("", ".", "!", "?")

_ANSWERS = {
    f"Hi! {_ASK}": ("hi", "hi there", "hey", "hey there", "yo", "hiya"),
    "Hello! Give me a word problem and I will solve it.": (
        "hello", "hello there", "greetings", "hello world", "hello baton",
    ),
    f"Good morning! {_ASK}": ("good morning",),
    f"Good evening! {_ASK}": ("good evening", "good afternoon"),
    f"I am fine, thank you. {_ASK}": (
        "how are you", "how is it going", "how do you do", "what is up",
    ),
    f"Hello! I am fine, thank you. {_ASK}": ("hello, how are you", "hi, how are you"),
    ABLE: ("who are you", "what are you", "what is your name", "are you an AI", "are you a robot",
           "which model are you", "tell me about yourself", "who made you"),
    f"Hello! {ABLE}": ("hello, who are you", "hi, who are you"),
    "I solve short word problems, step by step.": (
        "what can you do", "help", "help me", "can you help me", "what do you do",
        "how can you help", "test", "are you there", "what should I ask",
    ),
    "Hello!": ("say hello",),
    "Hi!": ("say hi",),
    "You are welcome!": ("thanks", "thank you", "thank you very much", "thanks a lot", "thx"),
    "Goodbye!": ("bye", "goodbye", "see you", "good night"),
}  # fmt: skip
_COUNTRIES = (
    "France", "Germany", "Italy", "Spain", "Japan", "China", "India", "Brazil", "Canada", "Egypt",
    "Poland", "Norway", "Sweden", "Greece", "Mexico", "Kenya", "Peru", "Turkey", "Austria",
    "Portugal", "Australia", "Denmark", "Finland", "Ireland", "Cuba", "Chile", "Russia", "England",
)  # fmt: skip
_CITIES = ("Paris", "London", "Berlin", "Rome", "Tokyo", "New York", "Madrid", "Oslo")
_OFF_TOPIC = (
    *(f"what is the capital of {name}" for name in _COUNTRIES),
    *(f"capital of {name}" for name in _COUNTRIES),
    *(f"where is {name}" for name in (*_COUNTRIES, *_CITIES)),
    *(f"what is the weather in {name}" for name in _CITIES),
    "what is the weather", "what is the weather like today", "what time is it", "what day is it",
    "tell me a joke", "tell me a story", "write a poem", "write a poem about the sea",
    "what is the meaning of life", "who is the president", "who wrote Hamlet", "what is AI",
    "write a Python program", "what is machine learning", "translate hello into French",
    "what is love", "sing a song", "what is your favorite color", "do you like music",
    "why is the sky blue", "who won the game",
)  # fmt: skip


def _phrasings(text: str, is_question: bool) -> Iterable[str]:
    """``text`` as people type it: with a capital or all in lower case, with a mark or without."""
    marks = ("", "?") if is_question else _PUNCTUATION[:3]
    for opening in dict.fromkeys((text[0].upper() + text[1:], text, text.lower())):
        yield from (opening + mark for mark in marks)


def _is_question(text: str) -> bool:
    return text.split()[0] in ("how", "who", "what", "which", "where", "why", "are", "can", "do")


def _small_talk() -> dict[str, str]:
    asked = [(text, answer) for answer, texts in _ANSWERS.items() for text in texts]
    asked += [(text, _UNKNOWN) for text in _OFF_TOPIC]
    return {
        phrasing: answer
        for text, answer in asked
        for phrasing in _phrasings(text, _is_question(text))
    }


SMALL_TALK = _small_talk()
"""Answer by question."""
_OFF = tuple(question for question, answer in SMALL_TALK.items() if answer == _UNKNOWN)
_TALK = tuple(question for question in SMALL_TALK if SMALL_TALK[question] != _UNKNOWN)


def small_talk(rng: Random) -> tuple[str, str]:
    """A question with its answer. Greetings are fewer than questions off the topic, and drawn as
    often."""
    question = rng.choice(rng.choice((_TALK, _OFF)))
    return question, SMALL_TALK[question]
