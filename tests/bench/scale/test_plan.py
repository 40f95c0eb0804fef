"""What the scale test asks for."""

import json

import pytest

from bench.harness.scale.plan import ScalePlan


def test_a_level_asks_for_more_than_it_holds_with_lengths_from_both_bounds() -> None:
    plan = ScalePlan(levels=(400,), input_len=(8, 16), output_len=4)
    bodies = [json.loads(ask.content) for ask in plan.asks(400, "m", "x-")]
    assert len(bodies) == 440
    assert {len(body["prompt"]) for body in bodies} == set(range(8, 17))
    assert {(body["max_tokens"], body["ignore_eos"], body["stream"]) for body in bodies} == {
        (4, True, True)
    }
    assert plan.asks(400, "m", "x-")[3].headers == {"X-Request-Id": "x-3"}
    assert len({tuple(body["prompt"]) for body in bodies}) > 430
    assert [ask.content for ask in plan.asks(400, "m", "x-")] == [
        ask.content for ask in plan.asks(400, "m", "x-")
    ]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"levels": ()}, "levels"),
        ({"levels": (0,)}, "levels"),
        ({"input_len": (9, 8)}, "input_len"),
        ({"output_len": 0}, "output_len"),
        ({"turnover": 0.9}, "turnover"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ScalePlan(**settings)  # type: ignore[arg-type]
