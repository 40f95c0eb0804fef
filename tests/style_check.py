"""The style rules that a program can judge: ``python -m tests.style_check`` lists what breaks them.

    opening       a docstring whose first word stands for a thing that is not named yet;
    riddle        a word or phrase that hides its subject (RIDDLES);
    long          a sentence of more than MAX_WORDS words in a docstring;
    kernel        a module of Triton kernels whose docstring names no reference, or no test file;
    constructor   an ``__init__`` of more than MAX_ARGUMENTS arguments: an object is missing.

``[tool.baton.style]`` in pyproject.toml names the files and folders to judge.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_WORDS = 45
MAX_ARGUMENTS = 8
OPENINGS = frozenset(
    ["also", "it", "its", "of", "or", "so", "such", "that", "theirs", "these", "they", "those"]
)  # fmt: skip
RIDDLES = re.compile(
    r"\b(whoever|nobody|somebody|anew|that one|the one that|of which|but what|it not|those which"
    r"|what is so)\b",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[.;:])\s")
ROOT = Path(__file__).resolve().parents[1]
KERNEL = re.compile(r"^@triton\.jit\b", re.MULTILINE)
TEST_FILE = re.compile(r"\btest_\w+\.py")
TEST_FILES = frozenset(path.name for path in (ROOT / "tests").rglob("test_*.py"))
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """One broken rule, with the line and the words that break it."""

    line: int
    rule: str
    words: str


class Paths(NamedTuple):
    """The files and folders that each group of rules judges, relative to the repository's root."""

    prose: tuple[str, ...]
    constructors: tuple[str, ...]
    exclude: tuple[str, ...]

    @classmethod
    def of(cls, settings: dict[str, list[str]]) -> "Paths":
        """Paths of the table ``[tool.baton.style]``. ValueError for a path that does not exist."""
        for name, paths in settings.items():
            for path in paths:
                if not (ROOT / path).exists():
                    raise ValueError(f"tool.baton.style.{name}: there is no {path}")
        return cls(*(tuple(settings.get(name, ())) for name in cls._fields))

    def judge(self, file: str, source: str) -> Iterator[Finding]:
        """The findings in one file, by the rules that apply to its path."""
        if _below(file, self.exclude):
            return
        judges_prose = _below(file, self.prose)
        judges_constructors = _below(file, self.constructors)
        if not (judges_prose or judges_constructors):
            return
        found = definitions(source)
        if judges_prose:
            yield from prose(source, found)
            yield from kernels(source)
        if judges_constructors:
            yield from constructors(found)


def definitions(source: str) -> list[Definition]:
    """The module itself, its classes and its functions."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Definition)]


def prose(source: str, found: Iterable[Definition]) -> Iterator[Finding]:
    """Openings, riddles and long sentences of docstrings, riddles of comments. ``found`` are the
    definitions of ``source``."""
    for line, text in _docstrings(found):
        words = text.split()
        if words and re.sub(r"\W", "", words[0]).lower() in OPENINGS:
            yield Finding(line, "opening", _first(words))
        yield from _riddles(line, " ".join(words))
        for sentence in SENTENCE_END.split(" ".join(words)):
            if len(sentence.split()) > MAX_WORDS:
                yield Finding(line, "long", _first(sentence.split()))
    if not any("#" in line and RIDDLES.search(line) for line in source.splitlines()):
        return  # no comment can have one, and to find comments takes longer than all the rest
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _riddles(token.start[0], token.string)


def kernels(source: str) -> Iterator[Finding]:
    """A finding unless the source of kernels says what they must equal, and which test shows it."""
    if KERNEL.search(source):
        text = ast.get_docstring(ast.parse(source)) or ""
        tests = set(TEST_FILE.findall(text))
        if "Reference" not in text or not tests:
            yield Finding(1, "kernel", "the docstring names no reference, or no test file")
        for missing in sorted(tests - TEST_FILES):
            yield Finding(1, "kernel", f"there is no {missing}")


def constructors(found: Iterable[Definition]) -> Iterator[Finding]:
    """The constructors with too many arguments. Dataclasses and structs are values: not counted."""
    for node in found:
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                num = len(method.args.args) + len(method.args.kwonlyargs) - 1
                if num > MAX_ARGUMENTS:
                    yield Finding(method.lineno, "constructor", f"{node.name} takes {num}")


def _docstrings(found: Iterable[Definition]) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes and functions, and the strings below constants and fields."""
    for node in found:
        for child in node.body:
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield child.lineno, text


def _riddles(line: int, text: str) -> Iterator[Finding]:
    for found in RIDDLES.finditer(text):
        around = text[max(0, found.start() - 30) : found.end() + 30]
        yield Finding(line, "riddle", around)


def _first(words: Sequence[str]) -> str:
    return " ".join(words[:10])


def _below(file: str, paths: tuple[str, ...]) -> bool:
    return any(Path(file).is_relative_to(path) for path in paths)


def main() -> int:
    with (ROOT / "pyproject.toml").open("rb") as file:
        paths = Paths.of(tomllib.load(file)["tool"]["baton"]["style"])
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    num = 0
    for name in listed.stdout.split():
        if not (ROOT / name).exists():  # removed, but not from git's index yet
            continue
        for found in paths.judge(name, (ROOT / name).read_text(encoding="utf-8")):
            print(f"{name}:{found.line}: {found.rule}: {found.words}")
            num += 1
    print(f"style: {num} findings; CONTRIBUTING.md says what is asked for" if num else "style: ok")
    return int(num > 0)


if __name__ == "__main__":
    sys.exit(main())
