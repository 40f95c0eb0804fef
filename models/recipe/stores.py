"""Problems whose data has to be looked up in a store: a price, or how many things there are."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from models.recipe import words
from models.recipe.money import person
from models.recipe.problems import Split, split_of
from models.recipe.work import Problem, Work

What = Literal["price", "quantity"]


@dataclass(frozen=True)
class Fact:
    """A price in dollars, or a number of things in the store."""

    name: str
    what: What
    value: int


@dataclass(frozen=True)
class Errand:
    """A problem and what has to be looked up first."""

    problem: Problem
    facts: tuple[Fact, ...]


def goods(rng: Random) -> tuple[list[str], list[str]]:
    """Two products: their names, and those of many."""
    one, other = rng.sample(words.GOODS, 2)
    return [one[0], other[0]], [one[1], other[1]]


def one_price(rng: Random) -> Errand:
    (name, he), w, n, price = person(rng), Work(), rng.randint(2, 12), rng.randint(2, 15)
    [one, _], [many, _] = goods(rng)
    w.step(f"The {many} cost {{}} dollars.", n, "*", price)
    ask = rng.choice((f"How much does {he} pay?", f"How many dollars does {he} spend?"))
    text = rng.choice((f"{name} buys {n} {many}. {ask}", f"How much do {n} {many} cost?"))
    return Errand(w.solves(text), (Fact(one, "price", price),))


def two_prices(rng: Random) -> Errand:
    (name, he), w = person(rng), Work()
    (one, other), (many, others) = goods(rng)
    n, m, price, cost = (rng.randint(2, 12) for _ in range(4))
    first = w.step(f"The {many} cost {{}} dollars.", n, "*", price)
    second = w.step(f"The {others} cost {{}} dollars.", m, "*", cost)
    w.step("Together that is {} dollars.", first, "+", second)
    ask = rng.choice((f"How much does {he} pay in total?", f"How many dollars does {he} spend?"))
    facts = (Fact(one, "price", price), Fact(other, "price", cost))
    return Errand(w.solves(f"{name} buys {n} {many} and {m} {others}.", ask), facts)


def pair(rng: Random) -> Errand:
    (one, other), _ = goods(rng)
    w, price, cost = Work(), rng.randint(3, 60), rng.randint(2, 60)
    facts = (Fact(one, "price", price), Fact(other, "price", cost))
    if price > cost and rng.random() < 0.7:
        w.step("The difference is {} dollars.", price, "-", cost)
        return Errand(w.solves(f"How much more does a {one} cost than a {other}?"), facts)
    w.step("Together that is {} dollars.", price, "+", cost)
    ask = f"How much do a {one} and a {other} cost together?"
    return Errand(w.solves(ask), facts)


def change(rng: Random) -> Errand:
    (name, he), w = person(rng), Work()
    [one, _], [many, _] = goods(rng)
    n, price = rng.randint(2, 9), rng.randint(2, 11)
    total = w.step(f"The {many} cost {{}} dollars.", n, "*", price)
    paid = rng.choice((100, 200))
    w.step("The change is {} dollars.", paid, "-", total)
    text = f"{name} buys {n} {many} and pays with ${paid}. How much change does {he} get?"
    return Errand(w.solves(text), (Fact(one, "price", price),))


def budget(rng: Random) -> Errand:
    (name, he), w = person(rng), Work()
    [one, _], [many, _] = goods(rng)
    price, count = rng.randint(2, 12), rng.randint(2, 12)
    w.step(f"{name} can buy {{}} {many}.", price * count, "/", price)
    text = f"{name} has ${price * count}. How many {many} can {he} buy?"
    return Errand(w.solves(text), (Fact(one, "price", price),))


def sold(rng: Random) -> Errand:
    w, things, gone, left = (
        Work(),
        rng.choice(words.OBJECTS),
        rng.randint(2, 60),
        rng.randint(1, 90),
    )
    w.step("After that, {} are left.", gone + left, "-", gone)
    verb = rng.choice(("sells", "gives away", "throws away"))
    text = f"The store {verb} {gone} of its {things}. How many {things} are left?"
    return Errand(w.solves(text), (Fact(things, "quantity", gone + left),))


def delivered(rng: Random) -> Errand:
    w, things, more, have = (
        Work(),
        rng.choice(words.OBJECTS),
        rng.randint(2, 90),
        rng.randint(2, 90),
    )
    w.step(f"Then the store has {{}} {things}.", have, "+", more)
    text = f"The store gets {more} more {things}. How many {things} does it have then?"
    return Errand(w.solves(text), (Fact(things, "quantity", have),))


def packed(rng: Random) -> Errand:
    w, things, ways, each = (
        Work(),
        rng.choice(words.OBJECTS),
        rng.randint(2, 12),
        rng.randint(2, 20),
    )
    box = rng.choice(words.CONTAINERS)
    w.step("That is {} in each.", ways * each, "/", ways)
    text = f"The store puts all its {things} equally into {ways} {box}. How many are in each?"
    return Errand(w.solves(text), (Fact(things, "quantity", ways * each),))


def both(rng: Random) -> Errand:
    w, (first, second) = Work(), rng.sample(words.OBJECTS, 2)
    have, other = rng.randint(2, 90), rng.randint(2, 90)
    w.step("Together there are {}.", have, "+", other)
    text = f"How many {first} and {second} does the store have together?"
    return Errand(w.solves(text), (Fact(first, "quantity", have), Fact(second, "quantity", other)))


def only(rng: Random) -> Errand:
    """Nothing to calculate."""
    if rng.random() < 0.5:
        [one, _], _ = goods(rng)
        price = rng.randint(2, 99)
        text = rng.choice((f"How much does a {one} cost?", f"What is the price of a {one}?"))
        line = f"A {one} costs {price} dollars."
        return Errand(Problem(text, (line,), price), (Fact(one, "price", price),))
    things, count = rng.choice(words.OBJECTS), rng.randint(2, 99)
    text = rng.choice(
        (f"How many {things} does the store have?", f"How many {things} are in the store?")
    )
    line = f"The store has {count} {things}."
    return Errand(Problem(text, (line,), count), (Fact(things, "quantity", count),))


TEMPLATES = (
    one_price,
    two_prices,
    two_prices,
    pair,
    change,
    budget,
    sold,
    delivered,
    packed,
    both,
    only,
)


def errands(rng: Random, split: Split) -> Iterator[Errand]:
    """Endless errands of one side of the split."""
    while True:
        errand = rng.choice(TEMPLATES)(rng)
        if split_of(errand.problem.question) == split:
            yield errand
