"""What the soak finds: a wrong token, a lost request, a record that contradicts its client."""

import random
from dataclasses import replace

import pytest

from tests.soak.cases import Case, drawn
from tests.soak.check import Window, answers, until
from tests.soak.faults import FAULTS, sequence
from tests.soak.load import Seen
from tests.soak.run import Plan, Round, row

CASE = Case("0-greedy", {"max_tokens": 3}, (7, 8, 9))
PLAN = Plan(run_s=60.0, every_s=20.0, seed=1, num_clients=4, num_cases=8)


def seen(outcome: str, *token_ids: int, detail: str = "") -> Seen:
    return Seen(CASE, True, "a", 10.0, 12.0, outcome, detail, list(token_ids))


def window(fault: str, *clients: Seen) -> Window:
    return Window(FAULTS[fault], 11.0, 12.0, clients, restarted=False, before={})


@pytest.mark.parametrize(
    "one",
    [
        seen("finished", 7, 8, 5),
        seen("finished", 7, 8),
        seen("cancelled", 7, 1),
        seen("finished", 7, 8, 9, 9),
    ],
)
def test_a_wrong_answer_is_found(one: Seen) -> None:
    (found,) = answers(window("clients vanish", one))
    assert "0-greedy" in found


def test_the_right_answer_or_its_beginning_is_right() -> None:
    clients = (seen("finished", 7, 8, 9), seen("cancelled", 7, 8), seen("cancelled"))
    assert answers(window("clients vanish", *clients)) == []


@pytest.mark.parametrize("outcome", ["failed", "refused", "broken"])
def test_only_the_kill_of_the_coordinator_excuses_a_broken_response(outcome: str) -> None:
    one = seen(outcome, 7, detail="shutting_down")
    (found,) = answers(window("decode worker killed", one))
    assert f"{outcome} after 1 tokens: shutting_down" in found
    assert len(answers(window("coordinator killed", one))) == (outcome != "broken")


def test_silence_counts_from_the_fault_to_the_next_token() -> None:
    one = seen("finished", 7, 8, 9)
    one.at = [10.5, 10.9, 13.0]
    assert one.silence_s(11.0) == 2.0
    assert one.silence_s(9.0) is None
    assert replace(one, stream=False).silence_s(11.0) is None


def test_cases_and_faults_follow_from_the_seed() -> None:
    assert drawn(random.Random(3), 5) == drawn(random.Random(3), 5)
    names = [*FAULTS]
    one, other = (sequence(names, random.Random(seed)) for seed in (3, 3))
    assert one == other
    assert sorted(one) == sorted(names)


async def test_a_condition_that_never_holds_is_told() -> None:
    async def never() -> str:
        return "3 pages held"

    assert (await until(never, 0.0))[1] == "3 pages held"


def test_a_plan_names_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="every_s: 0"):
        replace(PLAN, every_s=0)
    with pytest.raises(ValueError, match="'earthquake' is none of"):
        replace(PLAN, only=("earthquake",))


def test_a_violation_stands_in_its_row() -> None:
    assert "VIOLATED: 3 pages held" in row(Round("scrapes", 1.0, violations=["3 pages held"]))
