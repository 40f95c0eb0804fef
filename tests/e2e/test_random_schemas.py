"""Answers keep to random schemas at temperature 1.5; tests/schemas/run.py asks more of them."""

from tests.e2e.stack import Stack
from tests.schemas.ask import judged, problem
from tests.schemas.generator import random_parameters, random_schema

NUM = 16


async def test_each_random_schema_gives_json_that_fits(tiny: Stack) -> None:
    outcomes = await judged(tiny.url, NUM)
    assert [each for each in outcomes if each.problem] == []
    assert len({each.text for each in outcomes}) > NUM


def test_schemas_are_the_same_for_the_same_seed_and_differ_else() -> None:
    for make in (random_schema, random_parameters):
        found = [make(seed) for seed in range(NUM)]
        assert found == [make(seed) for seed in range(NUM)]
        assert len({str(each) for each in found}) == NUM


def test_what_does_not_fit_is_found() -> None:
    schema = {"type": "string", "format": "date"}
    assert problem('"2024-02-29"', schema) == ""
    assert "date" in problem('"2024-02-31"', schema)
    assert problem("2", schema)
    assert problem('"2024', schema)
