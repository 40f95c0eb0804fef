"""Where two texts part, and why."""

from bench.same_text import Text, compare, first_difference, text_of


def test_equal_texts_have_no_difference() -> None:
    one = Text((1, 2, 3), (0.5, 0.5, 0.5))
    assert first_difference(0, one, one) is None
    assert compare([one], [one], 0.1)["share"] == 0.0


def test_a_difference_is_where_they_part_with_the_closer_call_of_both_sides() -> None:
    one, other = Text((1, 2, 3), (2.0, 0.4, 0.0)), Text((1, 9, 9), (2.0, 0.02, 5.0))
    found = compare([one, one], [one, other], tie=0.1)
    assert (found["requests"], found["different"], found["share"]) == (2, 1, 0.5)
    assert found["unexplained"] == 0
    assert found["differences"] == [
        {"request": 1, "position": 1, "margin_nats": 0.02, "reason": "near tie"}
    ]
    assert compare([one], [other], tie=0.01)["unexplained"] == 1


def test_a_text_that_ends_early_is_never_explained() -> None:
    one, other = Text((1, 2), (0.0, 0.0)), Text((1,), (0.0,))
    found = compare([one], [other], tie=10.0)
    assert found["unexplained"] == 1
    assert found["differences"][0]["margin_nats"] is None


def test_margins_come_from_the_two_best() -> None:
    choice = {
        "token_ids": [4, 5],
        "logprobs": {"top_logprobs": [{"a": -0.1, "b": -3.1}, {"c": -2.0}]},
    }
    assert text_of(choice) == Text((4, 5), (3.0, 0.0))
