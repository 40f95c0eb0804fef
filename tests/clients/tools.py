"""The tools calculator(expression) and lookup(name) of models/recipe, with strings so short that
any model can fill them in under a forced choice."""

import ast
import operator
import re
from typing import Any

from pydantic import BaseModel, Field

SHELLS = "Nina has 13 shells. Diana gives Nina 46 shells. How many shells does Nina have now?"
SHELLS_LEFT = 59
PRICES = "How much more does a plant cost than a cup?"
"""Three calls: two of lookup, one of calculator."""
AGENT_TASKS = {SHELLS: SHELLS_LEFT, PRICES: 3}
"""What an agent is asked, and the number that it ends with."""
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_STORE = {"cup": 4, "plant": 7, "shells": 13}


class Calculator(BaseModel):
    """Computes arithmetic, for example 12 * 3."""

    expression: str = Field(max_length=24, pattern=r"^[0-9]{1,4}( [-+*/] [0-9]{1,4}){1,3}$")


class Lookup(BaseModel):
    """Finds the price of a product or the quantity of an item."""

    name: str = Field(pattern=r"^[a-z]{1,12}$")


def calculator(expression: str) -> str:
    """Computes arithmetic, for example 12 * 3."""
    try:
        return f"{_value(ast.parse(expression, mode='eval').body):g}"
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        return f"error: {error}"


def lookup(name: str) -> str:
    """Finds the price of a product or the quantity of an item."""
    return str(_STORE.get(name, f"Error: nothing is known of {name!r}"))


def called(name: str, arguments: dict[str, Any]) -> str:
    """The result of a call."""
    return {"calculator": calculator, "lookup": lookup}[name](**arguments)


def function(name: str, kind: type[BaseModel]) -> dict[str, Any]:
    """The tool ``name`` with the parameters of ``kind``, as OpenAI's API has it."""
    described = {"name": name, "description": kind.__doc__, "parameters": kind.model_json_schema()}
    return {"type": "function", "function": described}


CALCULATOR = function("calculator", Calculator)
LOOKUP = function("lookup", Lookup)


def named(name: str) -> dict[str, Any]:
    """The ``tool_choice`` of one function."""
    return {"type": "function", "function": {"name": name}}


def last_number(text: str) -> int:
    """The last whole number in ``text``."""
    return int(re.findall(r"-?\d+", text)[-1])


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError(f"not an expression of numbers: {ast.unparse(node)}")
