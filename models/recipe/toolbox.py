"""The tools of one conversation, and their execution."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from models.recipe.calculators import Calculator, by_expression, calculator
from models.recipe.definitions import Definition, Field, Style
from models.recipe.lookups import Lookup, by_name, lookup
from models.recipe.stores import Fact

TEXT = {"type": "string"}
OTHERS = (
    ("get_weather", "Looks up the weather in a city.", [Field("city", TEXT, "The city.")]),
    ("get_time", "The time of day.", [Field("zone", TEXT, "The time zone.")]),
    (
        "send_email",
        "Sends an email.",
        [Field("to", TEXT, "The address."), Field("body", TEXT, "The text.")],
    ),
    (
        "translate",
        "Translates a text.",
        [Field("text", TEXT, "The text."), Field("language", TEXT, "The language.")],
    ),
    ("set_timer", "Sets a timer.", [Field("minutes", {"type": "integer"}, "How long.")]),
    ("search_web", "Searches the web.", [Field("query", TEXT, "What to search.")]),
)
# What a calculator and a lookup reply, `{}` being the number.
RESULTS = ("{}", "{}", "{}", '{{"result": {}}}', "The result is {}.")
FACTS = {
    "price": ("{}", "{}", "{}", "${}", '{{"price": {}}}', "{} dollars"),
    "quantity": ("{}", "{}", "{}", '{{"quantity": {}}}', "There are {}."),
}


@dataclass(frozen=True)
class Toolbox:
    """What the model may call. `facts` is what a lookup finds, `result` and `found` are the forms
    of the replies."""

    definitions: tuple[Definition, ...]
    calculator: Calculator | None
    lookup: Lookup | None
    facts: tuple[Fact, ...] = ()
    result: str = "{}"
    found: str = "{}"
    floats: bool = False

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The reply to a call; what is wrong with the call is a reply too."""
        try:
            if self.calculator and name in names_of(self.calculator.definitions):
                return self.result.format(self._number(self.calculator.run(name, arguments)))
            if self.lookup and name in names_of(self.lookup.definitions):
                wanted, what = self.lookup.run(name, arguments)
                return self.found.format(self._fact(wanted, what).value)
        except KeyError as error:
            return f"Error: no argument {error}"
        except ValueError as error:
            return f"Error: {error}"
        return f"Error: no tool {name}"

    def _number(self, value: Fraction) -> str:
        if value.denominator == 1 and not self.floats:
            return str(value)
        return str(float(value))

    def _fact(self, wanted: str, what: str | None) -> Fact:
        for fact in self.facts:
            if fact.name == wanted and what in (None, fact.what):
                return fact
        raise ValueError(f"nothing is known of {wanted!r}")


def names_of(definitions: tuple[Definition, ...]) -> list[str]:
    return [definition["function"]["name"] for definition in definitions]


def plain_toolbox(facts: tuple[Fact, ...]) -> Toolbox:
    """The two tools of the documentation: calculator(expression) and lookup(name)."""
    rng, style = Random("plain"), Style(Random("plain"))
    calculates, looks_up = by_expression(rng, style, plain=True), by_name(rng, style, plain=True)
    definitions = (*calculates.definitions, *looks_up.definitions)
    return Toolbox(definitions, calculates, looks_up, facts)


def toolbox(
    rng: Random, facts: tuple[Fact, ...], *, calculates: bool, looks_up: bool, others: int
) -> Toolbox:
    """Tools of any kind in any order."""
    style = Style(rng)
    while True:
        calculation = calculator(rng, style) if calculates else None
        search = lookup(rng, style) if looks_up else None
        definitions = [style.function(*other) for other in rng.sample(OTHERS, others)]
        definitions += calculation.definitions if calculation else ()
        definitions += search.definitions if search else ()
        names = names_of(tuple(definitions))
        if len(set(names)) == len(names):
            break
    rng.shuffle(definitions)
    return Toolbox(
        tuple(definitions),
        calculation,
        search,
        facts,
        result=rng.choice(RESULTS),
        found=rng.choice(FACTS[facts[0].what] if facts else FACTS["price"]),
        floats=rng.random() < 0.1,
    )
