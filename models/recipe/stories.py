"""Stories: a person owns things, and one to three events change their number.

The free combination of events gives most of the variety of the training set: the model has to
read in what order things happen, not to recognise a template.
"""

from collections.abc import Callable
from random import Random

from models.recipe import words
from models.recipe.work import Problem, Work


class Teller:
    """The state of one story: who, what, how many now."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        he = rng.random() < 0.5
        self.name = rng.choice(words.HE if he else words.SHE)
        self.pronoun = "He" if he else "She"
        self.friend = rng.choice([n for n in words.HE + words.SHE if n != self.name])
        self.things = rng.choice(words.OBJECTS)
        self.count = rng.choice((rng.randint(3, 12), rng.randint(6, 80)))
        self.text: list[str] = [
            rng.choice(
                (
                    f"{self.name} has {self.count} {self.things}.",
                    f"{self.name} starts with {self.count} {self.things}.",
                    f"There are {self.count} {self.things} in {self.name}'s room.",
                )
            )
        ]
        self.work = Work()


def gain(t: Teller) -> None:
    more = t.rng.randint(2, 60)
    t.text.append(
        t.rng.choice(
            (
                f"{t.pronoun} buys {more} more {t.things}.",
                f"{t.pronoun} finds {more} more {t.things}.",
                f"{t.friend} gives {t.name} {more} {t.things}.",
                f"Then {t.name} gets {more} more.",
            )
        )
    )
    t.count = t.work.step(f"Then {t.name} has {{}} {t.things}.", t.count, "+", more)


def lose(t: Teller) -> None:
    gone = t.rng.randint(2, t.count - 2)
    phrase, line = t.rng.choice(
        (
            (f"{t.pronoun} gives {gone} {t.things} to {t.friend}.", "After giving, {} are left."),
            (f"{t.pronoun} loses {gone} of them.", "After losing some, {} are left."),
            (f"{t.pronoun} sells {gone} {t.things}.", "After selling, {} are left."),
            (f"{t.friend} takes {gone} of the {t.things}.", "After that, {} are left."),
        )
    )
    t.text.append(phrase)
    t.count = t.work.step(line, t.count, "-", gone)


def compact_opening(t: Teller) -> None:
    """The first event in the opening sentence: "Tom has 3 apples and buys 5 more."."""
    have, t.text = f"{t.name} has {t.count} {t.things}", []
    if t.count > 3 and t.rng.random() < 0.5:
        gone, verb = t.rng.randint(2, t.count - 1), t.rng.choice(("loses", "sells", "gives away"))
        t.text.append(f"{have} and {verb} {gone} of them.")
        t.count = t.work.step("Then {} are left.", t.count, "-", gone)
    else:
        more, verb = t.rng.randint(2, 60), t.rng.choice(("buys", "finds", "gets"))
        t.text.append(f"{have} and {verb} {more} more.")
        t.count = t.work.step(f"Then {t.name} has {{}} {t.things}.", t.count, "+", more)


def grow(t: Teller) -> None:
    factor, verb = t.rng.choice(((2, "doubles"), (3, "triples")))
    t.text.append(f"Then {t.name} {verb} the number of {t.things}.")
    t.count = t.work.step(f"The number {verb}, so {{}} {t.things}.", t.count, "*", factor)


def packs(t: Teller) -> None:
    num, each = t.rng.randint(2, 9), t.rng.randint(2, 12)
    box = t.rng.choice(words.CONTAINERS)
    t.text.append(f"{t.pronoun} gets {num} {box} with {each} {t.things} in each.")
    new = t.work.step(f"The {box} hold {{}} {t.things}.", num, "*", each)
    t.count = t.work.step(f"Now {t.name} has {{}} {t.things}.", t.count, "+", new)


def split(t: Teller) -> str:
    """End a story by sharing everything; the divisor is chosen so that it comes out even."""
    ways = t.rng.choice([d for d in range(2, 13) if t.count % d == 0])
    end, line, question = t.rng.choice(
        (
            (
                f"shares all of them equally among {ways} friends.",
                "Each friend gets {}.",
                f"How many {t.things} does each friend get?",
            ),
            (
                f"puts all of them equally into {ways} boxes.",
                "Each box holds {}.",
                f"How many {t.things} are in each box?",
            ),
        )
    )
    t.text.append(f"Then {t.name} {end}")
    t.work.step(line, t.count, "/", ways)
    return question


EVENTS: tuple[Callable[[Teller], None], ...] = (gain, gain, lose, lose, grow, packs)


def story(rng: Random) -> Problem:
    """One to three events, then how many are there now, or in each equal share."""
    t = Teller(rng)
    num_events = rng.randint(1, 3)
    if rng.random() < 0.25:
        compact_opening(t)
        num_events -= 1
    for _ in range(num_events):
        event = rng.choice(EVENTS)
        if event is grow and t.count > 99:
            event = lose
        elif event is lose and t.count < 4:
            event = gain
        event(t)
    if rng.random() < 0.3 and any(t.count % d == 0 for d in range(2, 13)):
        question = split(t)
    else:
        question = rng.choice(
            (
                f"How many {t.things} does {t.name} have now?",
                f"How many {t.things} are there in the end?",
                f"How many {t.things} does {t.name} have in the end?",
                f"How many {t.things} does {t.pronoun.lower()} have?",
                f"How many {t.things} does {t.pronoun.lower()} have left?",
            )
        )
    return t.work.solves(*t.text, question)
