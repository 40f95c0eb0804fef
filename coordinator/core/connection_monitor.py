"""Which worker processes are still at the other end of their connections."""

from collections.abc import Callable, Iterable

from transport.wire.messages import Alive, ToWorker

_MISSED_LIMIT = 2


class ConnectionMonitor:
    """``send`` says whether a worker was reached; ``coordinator`` is our instance."""

    def __init__(self, send: Callable[[str, ToWorker], bool], coordinator: str) -> None:
        self._send = send
        self._alive = Alive(coordinator)
        self._missed: dict[str, int] = {}

    def reaches(self, instance: str) -> bool:
        """Tell one that we are alive; whether it is connected."""
        return self._send(instance, self._alive)

    def beat(self, instances: Iterable[str]) -> set[str]:
        """Once a heartbeat: tell each that we are alive. Returns those that two beats in a row did
        not reach: a dead process's connection closes at once, a live one has reconnected by then.
        """
        self._missed = {
            instance: 0 if self.reaches(instance) else self._missed.get(instance, 0) + 1
            for instance in instances
        }
        return {each for each, missed in self._missed.items() if missed >= _MISSED_LIMIT}
