"""A problem and the running notes of its worked answer."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

Op = Literal["+", "-", "*", "/"]
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


class Step(NamedTuple):
    """One equation of a worked answer."""

    left: int
    op: Op
    right: int
    result: int

    @property
    def expression(self) -> str:
        return f"{self.left} {self.op} {self.right}"

    @property
    def equation(self) -> str:
        return f"{self.expression} = {self.result}"


@dataclass(frozen=True)
class Problem:
    """A question, its worked lines and the number they lead to."""

    question: str
    lines: tuple[str, ...]
    final: int

    @property
    def answer(self) -> str:
        """GSM8K form: one line per step, then `#### N`."""
        return "\n".join((*self.lines, f"#### {self.final}"))

    @property
    def steps(self) -> list[Step]:
        """The equations of the worked lines."""
        found = EQUATION.findall("\n".join(self.lines))
        return [Step(int(left), op, int(right), int(result)) for left, op, right, result in found]


def calculate(left: int, op: Op, right: int) -> int:
    """Exact, non-negative integer arithmetic; anything else is a bug of the template."""
    if op == "+":
        return left + right
    if op == "*":
        return left * right
    if op == "-":
        assert left >= right, f"{left} - {right} is negative"
        return left - right
    assert left % right == 0, f"{left} / {right} is not whole"
    return left // right


class Work:
    """Collects worked lines; the arithmetic in them is correct by construction."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.last = 0

    def step(self, sentence: str, left: int, op: Op, right: int) -> int:
        """Add `sentence` with its `{}` replaced by the equation; return the result."""
        self.last = calculate(left, op, right)
        self.lines.append(sentence.replace("{}", f"{left} {op} {right} = {self.last}"))
        return self.last

    def solves(self, *sentences: str) -> Problem:
        """Close the notes: the last result answers the question made of `sentences`."""
        return Problem(" ".join(sentences), tuple(self.lines), self.last)
