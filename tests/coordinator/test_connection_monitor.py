from coordinator.core.connection_monitor import ConnectionMonitor
from transport.wire.messages import Alive, ToWorker


def test_who_was_missed_twice_in_a_row_is_gone() -> None:
    closed: set[str] = set()
    said: list[str] = []

    def send(instance: str, message: ToWorker) -> bool:
        assert message == Alive("c1")
        said.append(instance)
        return instance not in closed

    reach = ConnectionMonitor(send, "c1")
    assert reach.beat(["p-1", "d-1"]) == set()
    closed = {"p-1", "d-1"}
    assert reach.beat(["p-1", "d-1"]) == set()
    closed = {"p-1"}
    assert reach.beat(["p-1", "d-1"]) == {"p-1"}
    closed = {"p-1", "d-1"}
    assert reach.beat(["d-1"]) == set()
    assert reach.beat(["d-1", "p-1"]) == {"d-1"}
    assert said == ["p-1", "d-1"] * 3 + ["d-1"] + ["d-1", "p-1"]
