"""Problems about ages, distances, rates, areas, groups and parts of a whole."""

from random import Random

from models.recipe import words
from models.recipe.money import person
from models.recipe.work import Problem, Work


def ages(rng: Random) -> Problem:
    (name, _), (other, _), w = person(rng), person(rng), Work()
    while other == name:
        other, _ = person(rng)
    age, gap, years = rng.randint(4, 30), rng.randint(2, 25), rng.randint(2, 20)
    if rng.random() < 0.5:
        relation = f"{other} is {gap} years older than {name}."
        second = w.step(f"{other} is {{}} years old.", age, "+", gap)
    else:
        factor, times = rng.choice(((2, "twice"), (3, "three times")))
        relation = f"{other} is {times} as old as {name}."
        second = w.step(f"{other} is {{}} years old.", age, "*", factor)
    text = [f"{name} is {age} years old.", relation]
    if rng.random() < 0.6:
        w.step(f"In {years} years {other} will be {{}}.", second, "+", years)
        return w.solves(*text, f"How old will {other} be in {years} years?")
    w.step("Together they are {} years old.", age, "+", second)
    return w.solves(*text, "How old are they together?")


def distance(rng: Random) -> Problem:
    w, vehicle = Work(), rng.choice(words.VEHICLES)
    speed, hours = rng.choice((rng.randint(5, 20), 5 * rng.randint(4, 18))), rng.randint(2, 9)
    more = rng.randint(3, 80)
    way = w.step(f"The {vehicle} goes {{}} miles.", speed, "*", hours)
    text = [f"A {vehicle} travels {speed} miles an hour for {hours} hours."]
    if rng.random() < 0.5:
        text.append(f"Then it travels {more} more miles.")
        w.step("In total that is {} miles.", way, "+", more)
    return w.solves(*text, rng.choice(("How far does it travel?", "How many miles does it go?")))


def trips(rng: Random) -> Problem:
    (name, he), w, place = person(rng), Work(), rng.choice(words.PLACES)
    miles, days = rng.randint(2, 15), rng.randint(2, 10)
    day = w.step("There and back is {} miles.", miles, "*", 2)
    w.step(f"In {days} days that is {{}} miles.", day, "*", days)
    return w.solves(
        f"{name} lives {miles} miles from the {place}.",
        f"{he.capitalize()} goes there and back every day for {days} days.",
        f"How many miles does {he} travel in total?",
    )


def production(rng: Random) -> Problem:
    w, maker, things = Work(), rng.choice(words.MAKERS), rng.choice(words.OBJECTS)
    rate, hours, count = rng.randint(3, 15), rng.randint(2, 9), rng.randint(2, 6)
    each = w.step(f"One {maker} makes {{}} {things}.", rate, "*", hours)
    w.step(f"All {count} make {{}} {things}.", each, "*", count)
    return w.solves(
        f"Each {maker} makes {rate} {things} an hour.",
        rng.choice(
            (
                f"How many {things} do {count} of them make in {hours} hours?",
                f"There are {count} of them. How many {things} do they make in {hours} hours?",
            )
        ),
    )


def rectangle(rng: Random) -> Problem:
    w, thing = Work(), rng.choice(("garden", "room", "field", "carpet", "table", "yard"))
    wide, long = rng.randint(2, 12), rng.randint(3, 30)
    text = f"A {thing} is {long} feet long and {wide} feet wide."
    if rng.random() < 0.5:
        w.step("The area is {} square feet.", long, "*", wide)
        return w.solves(text, "What is its area in square feet?")
    half = w.step("Length plus width is {} feet.", long, "+", wide)
    w.step("All four sides are {} feet.", half, "*", 2)
    return w.solves(text, "What is its perimeter in feet?")


def reading(rng: Random) -> Problem:
    (name, he), w = person(rng), Work()
    daily, days, rest = rng.randint(4, 25), rng.randint(2, 9), rng.randint(2, 90)
    pages = daily * days + rest
    read = w.step(f"{name} reads {{}} pages.", daily, "*", days)
    w.step("Then {} pages are left.", pages, "-", read)
    return w.solves(
        f"{name} has a book with {pages} pages.",
        f"{he.capitalize()} reads {daily} pages a day for {days} days.",
        rng.choice((f"How many pages does {he} have left?", "How many pages are left to read?")),
    )


def farm(rng: Random) -> Problem:
    w, (first, second) = Work(), rng.sample(words.ANIMALS, 2)
    count = rng.randint(3, 30)
    factor, times = rng.choice(((2, "twice"), (3, "three times"), (4, "four times")))
    extra = w.step(f"There are {{}} {second}.", count, "*", factor)
    total = w.step("Together there are {} animals.", count, "+", extra)
    text = f"A farm has {count} {first} and {times} as many {second}."
    if rng.random() < 0.4:
        sold = rng.randint(2, total - 1)
        w.step("After the sale {} are left.", total, "-", sold)
        return w.solves(text, f"The farmer sells {sold} animals.", "How many animals are left?")
    return w.solves(text, "How many animals are there in total?")


def seats(rng: Random) -> Problem:
    w, rows, each = Work(), rng.randint(3, 12), rng.randint(3, 15)
    total = w.step("There are {} seats.", rows, "*", each)
    taken = rng.randint(2, total - 1)
    w.step("Then {} seats are free.", total, "-", taken)
    return w.solves(
        f"A {rng.choice(('hall', 'bus', 'theater', 'cinema'))} has {rows} rows of {each} seats.",
        f"{taken} people sit down.",
        rng.choice(("How many seats are empty?", "How many seats are still free?")),
    )


def portion(rng: Random) -> Problem:
    w, things = Work(), rng.choice(words.OBJECTS)
    name, part = rng.choice((("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5)))
    total = part * rng.randint(3, 25)
    color = rng.choice(("red", "blue", "green", "old", "new", "small"))
    some = w.step(f"{{}} {things} are {color}.", total, "/", part)
    text = f"There are {total} {things} and {name} of them are {color}."
    if rng.random() < 0.3:
        return w.solves(text, f"How many {things} are {color}?")
    w.step(f"So {{}} are not {color}.", total, "-", some)
    return w.solves(text, f"How many {things} are not {color}?")


def compare(rng: Random) -> Problem:
    (name, _), (other, _), w = person(rng), person(rng), Work()
    while other == name:
        other, _ = person(rng)
    things, count, gap = rng.choice(words.OBJECTS), rng.randint(5, 90), rng.randint(2, 60)
    if rng.random() < 0.5 and gap < count:
        relation = f"{other} has {gap} fewer {things} than {name}."
        second = w.step(f"{other} has {{}} {things}.", count, "-", gap)
    else:
        relation = f"{other} has {gap} more {things} than {name}."
        second = w.step(f"{other} has {{}} {things}.", count, "+", gap)
    text = [f"{name} has {count} {things}.", relation]
    if rng.random() < 0.4:
        return w.solves(*text, f"How many {things} does {other} have?")
    w.step(f"Together they have {{}} {things}.", count, "+", second)
    return w.solves(*text, f"How many {things} do they have together?")


def months(rng: Random) -> Problem:
    (name, he), w = person(rng), Work()
    verb, past = rng.choice((("sell", "sold"), ("make", "made"), ("collect", "collected")))
    things = rng.choice(words.OBJECTS)
    first, second = rng.choice((("April", "May"), ("the morning", "the afternoon")))
    if rng.random() < 0.5:
        count = 2 * rng.randint(3, 60)
        more, relation = count // 2, "half as many"
        w.step(f"In {second} {he} {past} {{}} {things}.", count, "/", 2)
    else:
        count, factor = rng.randint(3, 60), 2
        more, relation = count * factor, "twice as many"
        w.step(f"In {second} {he} {past} {{}} {things}.", count, "*", factor)
    w.step(f"Altogether {he} {past} {{}} {things}.", count, "+", more)
    link = rng.choice((f", and then {he} {past}", f" and {he} {past}", f" and {past}"))
    return w.solves(
        f"{name} {past} {count} {things} in {first}{link} {relation} in {second}.",
        rng.choice(
            (
                f"How many {things} did {name} {verb} altogether in {first} and {second}?",
                f"How many {things} did {he} {verb} in total?",
            )
        ),
    )
