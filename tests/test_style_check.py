"""What the style check finds, and what it accepts."""

import pytest

from tests import style_check
from tests.style_check import Paths, definitions


def rules(source: str) -> list[str]:
    return [found.rule for found in style_check.prose(source, definitions(source))]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Pages of the pool."""', []),
        ('"""Of a page, how many tokens it holds."""', ["opening"]),
        ('X = 1\n"""It is one."""', ["opening"]),
        ('"""Waits for whoever comes first."""', ["riddle"]),
        ('"""A row, the one\nthat follows."""', ["riddle"]),
        ("x = 1  # written anew", ["riddle"]),
        ('x = "written anew"', []),
        ('x = "# written anew"', []),
        (f'"""{"word " * 46}."""', ["long"]),
        (f'"""{"word " * 30}; {"word " * 30}."""', []),
        ('def f():\n    """Those of a page."""', ["opening"]),
        ('async def f():\n    """Those of a page."""', ["opening"]),
    ],
)
def test_rules_of_prose(source: str, found: list[str]) -> None:
    assert rules(source) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Reference: the formula; test: tests/test_style_check.py.", []),
        ("Sums.", ["the docstring names no reference, or no test file"]),
        ("Reference: the formula.", ["the docstring names no reference, or no test file"]),
        ("Reference: the formula; test: test_no_such.py.", ["there is no test_no_such.py"]),
    ],
)
def test_kernels_name_their_reference_and_their_test(text: str, words: list[str]) -> None:
    module = f'"""{text}"""\n@triton.jit\ndef kernel(): ...\n'
    assert [found.words for found in style_check.kernels(module)] == words
    assert list(style_check.kernels(module.replace("@triton.jit\n", ""))) == []


def test_a_constructor_of_nine_arguments_is_found_and_a_dataclass_is_not() -> None:
    names = ", ".join(f"a{i}" for i in range(8))
    wide = f"class A:\n    def __init__(self, {names}, *, b): ...\n"
    fields = "".join(f"    a{i}: int\n" for i in range(9))
    found = style_check.constructors(definitions(f"{wide}\n@dataclass\nclass B:\n{fields}"))
    assert [(each.rule, each.words) for each in found] == [("constructor", "A takes 9")]
    assert list(style_check.constructors(definitions(wide.replace(", *, b", "")))) == []


def test_paths_say_which_files_are_judged_by_which_rules() -> None:
    source = '"""Of a page."""\nclass A:\n    def __init__(self, a, b, c, d, e, f, g, h, i): ...\n'
    paths = Paths(prose=("engine", "worker"), constructors=("engine",), exclude=("engine/spread",))

    def judged(file: str) -> list[str]:
        return [found.rule for found in paths.judge(file, source)]

    assert judged("engine/cache/pages.py") == ["opening", "constructor"]
    assert judged("worker/loop.py") == ["opening"]
    assert judged("engine/spread/steps.py") == []
    assert judged("engines/pages.py") == []


def test_a_path_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"tool\.baton\.style\.prose: there is no engin$"):
        Paths.of({"prose": ["engine", "engin"]})


def test_the_repository_keeps_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert style_check.main() == 0, capsys.readouterr().out
