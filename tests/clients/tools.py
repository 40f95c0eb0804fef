"""Two tools that the bundled model has learned, in a form that any model can fill in under a forced
choice: each string is short."""

import ast
import operator
import re
from typing import Any

from pydantic import BaseModel, Field

SHELLS = "Nina has 13 shells. Diana gives Nina 46 shells. How many shells does Nina have now?"
SHELLS_LEFT = 59
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_STOCK = {"shells": 13, "cups": 11, "plants": 7}


class Calculator(BaseModel):
    """Computes an expression of numbers, + - * / and brackets."""

    expression: str = Field(max_length=24, pattern=r"^[0-9]{1,4}( [-+*] [0-9]{1,4}){1,3}$")


class Lookup(BaseModel):
    """Looks up how many pieces of an article there are."""

    article: str = Field(pattern=r"^[a-z]{1,12}$")


def calculator(expression: str) -> str:
    """Computes an expression of numbers, + - * / and brackets."""
    try:
        return f"{_value(ast.parse(expression, mode='eval').body):g}"
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        return f"error: {error}"


def lookup(article: str) -> str:
    """Looks up how many pieces of an article there are."""
    return str(_STOCK.get(article, "unknown"))


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
