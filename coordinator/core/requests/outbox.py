"""Collects the effects of an event until it is over."""

from collections.abc import Callable, Iterable

from coordinator.core.effects import Effect, Recorded, Send
from coordinator.core.request import Request
from transport.wire.messages import ToWorker


class Outbox:
    """Gives each effect of an event to ``carry_out`` when the event is over.

    Every event is a ``with`` block, so no effect waits for a later event. Orders to workers are
    carried out first, because a GPU may be idle until its order arrives and the other effects take
    time; ``send_orders`` lets them go while the event continues. An event that begins inside
    another one, or while effects are carried out, adds to what is carried out next.
    """

    def __init__(self, carry_out: Callable[[Effect], None]) -> None:
        self._carry_out = carry_out
        self._depth = 0
        self._orders: list[Send] = []
        self._others: list[Effect] = []

    def send(self, instance: str, message: ToWorker) -> None:
        """Add an order to a worker."""
        assert self._depth, "an order outside an event"
        self._orders.append(Send(instance, message))

    def send_all(self, orders: Iterable[tuple[str, ToWorker]]) -> None:
        """Add orders, each with the worker that it is for."""
        for instance, message in orders:
            self.send(instance, message)

    def send_orders(self) -> None:
        """Carry out the orders so far, before a part of the event that takes long. Inside another
        event they wait for its end."""
        while self._depth == 1 and self._orders:
            self._carry_out(self._orders.pop(0))

    def add(self, *effects: Effect) -> None:
        assert self._depth, "an effect outside an event"
        self._others.extend(effects)

    def record(self, request: Request) -> None:
        """Add the new revision of a request that has changed."""
        request.revision += 1
        self.add(Recorded(request))

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        try:
            while self._depth == 1 and (effects := [*self._orders, *self._others]):
                self._orders, self._others = [], []
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._depth -= 1
