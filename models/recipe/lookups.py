"""Tools that look up a price or a quantity: how they are called, and what they find."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from models.recipe.calculators import Call
from models.recipe.definitions import Definition, Field, Style, named
from models.recipe.stores import Fact, What

GENERAL = ("lookup", "lookup", "lookup", "look_up", "find", "search", "get_value", "query_store")
BY_WHAT: dict[What, tuple[str, ...]] = {
    "price": ("get_price", "lookup_price", "price_of", "find_price", "product_price", "lookup"),
    "quantity": ("get_quantity", "get_stock", "count_items", "stock_of", "inventory", "lookup"),
}
SENTENCES: dict[What, tuple[str, ...]] = {
    "price": (
        "Looks up the price of a product.",
        "Get the price of a product in dollars.",
        "What one product costs.",
    ),
    "quantity": (
        "Looks up the quantity of an item in the store.",
        "Get how many of an item are in stock.",
        "The number of items in the store.",
    ),
}
BOTH = (
    "Looks up a price or a quantity by name.",
    "Finds the price of a product or the quantity of an item.",
    "Get data of the store: prices and quantities.",
)
NAME = ("name", "name", "item", "product", "key", "query", "thing", "item_name")


@dataclass(frozen=True)
class Lookup:
    """`call` asks for a fact with one of `definitions`; `run` gives name and kind of the fact
    that a call asks for, the kind None where the tool does not tell them apart."""

    definitions: tuple[Definition, ...]
    call: Callable[[Fact], Call]
    run: Callable[[str, Mapping[str, Any]], tuple[str, What | None]]


def by_name(rng: Random, style: Style, plain: bool = False) -> Lookup:
    """One tool for everything. `plain`: lookup(name)."""
    name = "lookup" if plain else named(rng, GENERAL)
    parameter = "name" if plain else named(rng, NAME)
    field = Field(parameter, {"type": "string"}, "The name of the item.")
    definition = style.function(name, rng.choice(BOTH), [field])
    return Lookup(
        (definition,),
        lambda fact: {"name": name, "arguments": {parameter: fact.name}},
        lambda _, given: (str(given[parameter]), None),
    )


def by_field(rng: Random, style: Style) -> Lookup:
    """One tool that takes a name and what to find."""
    name, parameter = named(rng, GENERAL), named(rng, NAME)
    what = rng.choice(("field", "what", "kind", "attribute"))
    fields = [
        Field(parameter, {"type": "string"}, "The name of the item."),
        Field(what, {"type": "string", "enum": ["price", "quantity"]}, "What to find."),
    ]
    if rng.random() < 0.3:
        fields.reverse()

    def call(fact: Fact) -> Call:
        values = {parameter: fact.name, what: fact.what}
        return {"name": name, "arguments": {field.name: values[field.name] for field in fields}}

    return Lookup(
        (style.function(name, rng.choice(BOTH), fields),),
        call,
        lambda _, given: (str(given[parameter]), given[what]),
    )


def by_kind(rng: Random, style: Style) -> Lookup:
    """A tool for prices and one for quantities."""
    parameter = named(rng, NAME)
    field = Field(parameter, {"type": "string"}, "The name of the item.")
    prices = named(rng, BY_WHAT["price"])
    names: dict[What, str] = {"price": prices}
    names["quantity"] = named(rng, BY_WHAT["quantity"], taken=(prices,))
    definitions = [
        style.function(name, rng.choice(SENTENCES[what]), [field]) for what, name in names.items()
    ]
    rng.shuffle(definitions)
    kinds = {name: what for what, name in names.items()}
    return Lookup(
        tuple(definitions),
        lambda fact: {"name": names[fact.what], "arguments": {parameter: fact.name}},
        lambda name, given: (str(given[parameter]), kinds[name]),
    )


def lookup(rng: Random, style: Style) -> Lookup:
    """A lookup of any kind."""
    return rng.choice((by_name, by_name, by_field, by_kind))(rng, style)
