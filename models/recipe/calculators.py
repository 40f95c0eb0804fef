"""Calculators that a conversation may offer: how they are called, and what they reply."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from models.recipe.definitions import INVENTED, Definition, Field, Style, invented, named
from models.recipe.work import Step

Call = dict[str, Any]
"""`name` and `arguments`, an object: the `function` of a tool call."""

NAMES = (
    "calculator",
    "calculator",
    "calculator",
    "calculate",
    "calc",
    "compute",
    "evaluate",
    "math",
)
EXPRESSION = ("expression", "expression", "expression", "expr", "formula", "input", "query", "text")
DESCRIPTIONS = (
    "Evaluates an arithmetic expression.",
    "Calculate the value of an expression.",
    "Computes arithmetic, for example 12 * 3.",
    "A calculator. Use it for all arithmetic.",
    "Does a calculation and returns the number.",
)
SPOKEN = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
SENTENCES = {
    "+": ("Adds two numbers.", "Add a and b.", "The sum of two numbers."),
    "-": ("Subtracts two numbers.", "Subtract b from a.", "The difference of two numbers."),
    "*": ("Multiplies two numbers.", "Multiply a and b.", "The product of two numbers."),
    "/": ("Divides two numbers.", "Divide a by b.", "The quotient of two numbers."),
}
APPLY: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value_of(expression: str) -> Fraction:
    """The value of an expression of numbers, + - * / and parentheses. Raises ValueError."""

    def walk(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int() | float() as number):
                return Fraction(number)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -walk(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in APPLY:
                return APPLY[type(op)](walk(left), walk(right))
        raise ValueError(f"not arithmetic: {expression!r}")

    try:
        return walk(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"cannot evaluate {expression!r}: {error}") from error


@dataclass(frozen=True)
class Calculator:
    """`call` writes a step as a call of one of `definitions`; `run` gives the value of a call."""

    definitions: tuple[Definition, ...]
    call: Callable[[Step], Call]
    run: Callable[[str, Mapping[str, Any]], Fraction]


def by_expression(rng: Random, style: Style, plain: bool = False) -> Calculator:
    """One tool that takes an expression as text. `plain`: calculator(expression)."""
    name = "calculator" if plain else named(rng, NAMES)
    parameter = "expression" if plain else named(rng, EXPRESSION)
    field = Field(parameter, {"type": "string"}, "The expression, for example 12 * 3.")
    definition = style.function(name, rng.choice(DESCRIPTIONS), [field])
    return Calculator(
        (definition,),
        lambda step: {"name": name, "arguments": {parameter: step.expression}},
        lambda _, arguments: value_of(str(arguments[parameter])),
    )


def by_operands(rng: Random, style: Style) -> Calculator:
    """One tool that takes two numbers and what to do with them."""
    name = named(rng, NAMES)
    left, op, right = rng.choice(
        (("a", "op", "b"), ("left", "operation", "right"), ("x", "op", "y"))
    )
    words = SPOKEN if rng.random() < 0.5 else {symbol: symbol for symbol in SPOKEN}
    number = {"type": rng.choice(("integer", "number"))}
    fields = [
        Field(left, number, "The first number."),
        Field(op, {"type": "string", "enum": list(words.values())}, "What to do with them."),
        Field(right, number, "The second number."),
    ]
    if rng.random() < 0.3:
        fields = [fields[1], fields[0], fields[2]]
    symbols = {word: symbol for symbol, word in words.items()}

    def call(step: Step) -> Call:
        values = {left: step.left, op: words[step.op], right: step.right}
        return {"name": name, "arguments": {field.name: values[field.name] for field in fields}}

    def run(_: str, given: Mapping[str, Any]) -> Fraction:
        return value_of(f"({given[left]}) {symbols[given[op]]} ({given[right]})")

    return Calculator((style.function(name, rng.choice(DESCRIPTIONS), fields),), call, run)


def by_operation(rng: Random, style: Style) -> Calculator:
    """A tool for each of the four operations."""
    prefix = rng.choice(("", "", "", "math_", "calc_"))
    names = {op: prefix + word for op, word in SPOKEN.items()}
    if rng.random() < INVENTED:
        names = {op: f"{invented(rng)}_{i}" for i, op in enumerate(SPOKEN)}
    left, right = rng.choice((("a", "b"), ("a", "b"), ("x", "y"), ("first", "second")))
    kind = {"type": rng.choice(("integer", "number"))}
    fields = [Field(left, kind, "The first number."), Field(right, kind, "The second number.")]
    pick = rng.randrange(3)
    definitions = [style.function(names[op], SENTENCES[op][pick], fields) for op in SPOKEN]
    rng.shuffle(definitions)
    symbols = {name: op for op, name in names.items()}
    return Calculator(
        tuple(definitions),
        lambda s: {"name": names[s.op], "arguments": {left: s.left, right: s.right}},
        lambda name, given: value_of(f"({given[left]}) {symbols[name]} ({given[right]})"),
    )


def calculator(rng: Random, style: Style) -> Calculator:
    """A calculator of any kind; most take an expression."""
    kinds = (by_expression, by_expression, by_expression, by_operands, by_operation)
    return rng.choice(kinds)(rng, style)
