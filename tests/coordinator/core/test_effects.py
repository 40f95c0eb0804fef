"""Effects are carried out at the end of their event, also those of events inside others."""

from unittest.mock import Mock

import pytest

from coordinator.core.effects import Ended, Outbox, Retried, Send
from transport.wire.messages import Cancel

ORDER, ENDED = Send("d-1", Cancel("r", 1)), Ended(Mock())


def test_orders_go_first_when_the_event_is_over() -> None:
    carried_out: list[object] = []
    outbox = Outbox(carried_out.append)
    with outbox:
        outbox.add(ENDED)
        with outbox:
            outbox.send(ORDER.instance, ORDER.message)
        assert carried_out == [], "the event goes on"
    assert carried_out == [ORDER, ENDED]


def test_orders_may_go_while_their_event_goes_on() -> None:
    carried_out: list[object] = []
    outbox = Outbox(carried_out.append)
    with outbox:
        outbox.add(ENDED)
        with outbox:
            outbox.send(ORDER.instance, ORDER.message)
            outbox.send_orders()
            assert carried_out == [], "the event around it has not decided yet"
        outbox.send_orders()
        assert carried_out == [ORDER]
    assert carried_out == [ORDER, ENDED]


def test_what_an_effect_brings_about_comes_after_the_other_effects() -> None:
    carried_out: list[object] = []
    again = Retried(Mock(), "preempted", "")

    def carry_out(effect: object) -> None:
        carried_out.append(effect)
        if effect is again:
            with outbox:
                outbox.send(ORDER.instance, ORDER.message)

    outbox = Outbox(carry_out)
    with outbox:
        outbox.add(again)
        outbox.add(ENDED)
    assert carried_out == [again, ENDED, ORDER]


def test_an_event_that_fails_half_way_strands_nothing() -> None:
    carried_out: list[object] = []
    outbox = Outbox(carried_out.append)

    def fail_half_way() -> None:
        with outbox:
            outbox.add(ENDED)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert carried_out == [ENDED]


def test_an_effect_outside_an_event_is_a_bug() -> None:
    outbox = Outbox(lambda effect: None)
    with pytest.raises(AssertionError, match="outside an event"):
        outbox.add(ENDED)
    with pytest.raises(AssertionError, match="outside an event"):
        outbox.send(ORDER.instance, ORDER.message)
