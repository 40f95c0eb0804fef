"""JSON objects whose end is missing."""

import json
import time
from typing import Any

import pytest

from coordinator.text.cut_json import completed_object


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        (" ", {}),
        ("{", {}),
        ('{"a": ', {"a": None}),
        ('{"a"', {}),
        ('{"a', {}),
        ('{"a": 5', {"a": 5}),
        ('{"a": 5,', {"a": 5}),
        ('{"a": 5, "b', {"a": 5}),
        ('{"a": 5, "b": tr', {"a": 5}),
        ('{"a": "so', {"a": "so"}),
        ('{"a": "so\\n\\"', {"a": 'so\n"'}),
        ('{"a": "so\\', {"a": "so"}),
        ('{"a": "so\\u00e', {"a": "so"}),
        ('{"a": "so", "b": [1]', {"a": "so", "b": [1]}),
        ('{"a": [1, {"b": [2, ', {"a": [1, {"b": [2, None]}]}),
        (json.dumps({"a": {"b": 1}}), {"a": {"b": 1}}),
        ("[1", None),
        ("5", None),
        ("no JSON", None),
        ("{no JSON", None),
        ('{"a": no JSON, ', None),
        ('{"a": 5} and more', None),
    ],
)
def test_what_is_there_is_kept(text: str, found: dict[str, Any] | None) -> None:
    assert completed_object(text) == found


def test_every_beginning_of_an_object_is_one() -> None:
    text = json.dumps({"a": [1, -2.5e3, None, True], "b": {"c": 'x"\\\n'}, "d": "é"})
    for end in range(1, len(text) + 1):
        assert isinstance(completed_object(text[:end]), dict), text[:end]


@pytest.mark.parametrize(
    "text",
    ['{"' + "1" * 50_000 + '" x', '{"a": ' + "1" * 50_000 + "x", '{"a"' + " " * 50_000 + "x"],
)
def test_the_time_grows_as_the_text_does(text: str) -> None:
    begun = time.process_time()
    assert completed_object(text) is None
    assert time.process_time() - begun < 1.0, "a search that goes back takes minutes"
