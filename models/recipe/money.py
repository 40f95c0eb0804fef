"""Problems about prices, wages and savings, in whole dollars."""

from random import Random

from models.recipe import words
from models.recipe.work import Problem, Work


def person(rng: Random) -> tuple[str, str]:
    """A name and the pronoun that goes with it."""
    he = rng.random() < 0.5
    return rng.choice(words.HE if he else words.SHE), "he" if he else "she"


def shopping(rng: Random) -> Problem:
    (name, he), w = person(rng), Work()
    (one, many), (other, others) = rng.sample(words.GOODS, 2)
    n, price, m, cost = (rng.randint(2, 12) for _ in range(4))
    first = w.step(f"The {many} cost {{}} dollars.", n, "*", price)
    second = w.step(f"The {others} cost {{}} dollars.", m, "*", cost)
    w.step("Together that is {} dollars.", first, "+", second)
    return w.solves(
        f"A {one} costs ${price} and a {other} costs ${cost}.",
        f"{name} buys {n} {many} and {m} {others}.",
        rng.choice(
            (f"How much does {he} pay in total?", f"How many dollars does {name} spend altogether?")
        ),
    )


def change(rng: Random) -> Problem:
    (name, he), w = person(rng), Work()
    _, many = rng.choice(words.GOODS)
    n, price = rng.randint(2, 12), rng.randint(2, 15)
    total = w.step(f"The {many} cost {{}} dollars.", n, "*", price)
    paid = rng.choice([bill for bill in (20, 50, 100, 200) if bill > total])
    w.step("The change is {} dollars.", paid, "-", total)
    return w.solves(
        f"{name} buys {n} {many} for ${price} each.",
        f"{he.capitalize()} pays with ${paid}.",
        rng.choice((f"How much change does {he} get?", f"How many dollars does {he} get back?")),
    )


def wages(rng: Random) -> Problem:
    (name, he), w = person(rng), Work()
    rate, hours, days = rng.randint(8, 20), rng.randint(2, 9), rng.randint(2, 7)
    daily = w.step(f"{name} earns {{}} dollars a day.", rate, "*", hours)
    total = w.step(f"In {days} days that is {{}} dollars.", daily, "*", days)
    text = [
        f"{name} works at {rng.choice(words.JOBS)} and earns ${rate} an hour.",
        f"{he.capitalize()} works {hours} hours a day for {days} days.",
    ]
    if rng.random() < 0.4:
        spent = rng.randint(5, total - 1)
        text.append(f"Then {he} spends ${spent}.")
        w.step("After spending, {} dollars are left.", total, "-", spent)
        return w.solves(*text, f"How many dollars does {he} have left?")
    return w.solves(*text, f"How much does {he} earn in total?")


def saving(rng: Random) -> Problem:
    (name, he), w = person(rng), Work()
    one, _ = rng.choice(words.GOODS)
    week, weeks, have = rng.randint(2, 12), rng.randint(2, 12), rng.randint(3, 60)
    if rng.random() < 0.5:
        saved = w.step("The savings are {} dollars.", week, "*", weeks)
        w.step("With the money from before, that is {} dollars.", have, "+", saved)
        return w.solves(
            f"{name} has ${have} and saves ${week} every week.",
            f"How many dollars does {he} have after {weeks} weeks?",
        )
    price = have + week * weeks
    missing = w.step(f"{name} still needs {{}} dollars.", price, "-", have)
    w.step("That takes {} weeks.", missing, "/", week)
    return w.solves(
        f"{name} wants to buy a {one} that costs ${price}.",
        f"{he.capitalize()} already has ${have} and saves ${week} every week.",
        f"How many weeks does {he} need to save?",
    )


def discount(rng: Random) -> Problem:
    (name, _), w = person(rng), Work()
    one, _ = rng.choice(words.GOODS)
    percent, part = rng.choice(((50, 2), (25, 4), (20, 5), (10, 10)))
    price = part * rng.randint(2, 20)
    off = w.step(f"{percent} percent of {price} is {{}}.", price, "/", part)
    w.step(f"{name} pays {{}} dollars.", price, "-", off)
    return w.solves(
        rng.choice(
            (
                f"A {one} costs ${price}. Today it is {percent}% off.",
                f"The price of a {one} is ${price}, but {name} has a coupon for {percent}% off.",
            )
        ),
        rng.choice((f"How much does {name} pay?", f"How many dollars does {name} pay for it?")),
    )


def bill(rng: Random) -> Problem:
    w = Work()
    people, share, tip = rng.randint(2, 9), rng.randint(4, 25), rng.randint(2, 12)
    meal = people * share - tip
    total = w.step("With the tip, the bill is {} dollars.", meal, "+", tip)
    w.step("Each person pays {} dollars.", total, "/", people)
    return w.solves(
        f"{people} friends eat lunch for ${meal} and leave a tip of ${tip}.",
        "They share the cost equally.",
        rng.choice(("How much does each friend pay?", "How many dollars does each of them pay?")),
    )
