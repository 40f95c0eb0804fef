"""One secret, both ends' keys; and where a channel without one may go."""

from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.channel_keys import channel_keys, require_keys
from transport.wire.secret_setting import CHANNEL_SECRET, secret_setting

TEXT = "0123456789abcdef" * 4


def test_the_keys_depend_on_the_secret_alone() -> None:
    keys, again, other = channel_keys(TEXT), channel_keys(TEXT), channel_keys(TEXT + "x")
    assert keys is not None and other is not None  # noqa: PT018
    assert keys == again
    found = {pair.secret for pair in (keys.coordinator, keys.worker, other.coordinator)}
    assert len(found) == 3
    for pair in (keys.coordinator, keys.worker):
        assert zmq.curve_public(pair.secret) == pair.public
        assert len(z85.decode(pair.secret)) == 32


def test_the_derivation_is_a_contract() -> None:
    """Services of two releases must find each other."""
    keys = channel_keys("baton" * 8)
    assert keys is not None
    assert keys.coordinator.public == b"buQhP^Zg<++NRN49RShlGp}Ax>mS!+*Qq-bBRgUS"
    assert keys.worker.public == b"+lZC/PmjiCAlN%yJh4&sLPmVhY:}?S<JYev@}Q^-"


def test_no_key_is_ever_shown() -> None:
    keys = channel_keys(TEXT)
    assert keys is not None
    assert keys.worker.secret.decode() not in repr(keys)
    assert keys.coordinator.secret.decode() not in repr(keys)


def test_a_short_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match=CHANNEL_SECRET) as refused:
        channel_keys("hunter2")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "endpoint",
    ["ipc:///run/c.sock", "inproc://c", "tcp://127.0.0.1:5555", "tcp://127.9.9.9:*",
     "tcp://localhost:5555", "tcp://[::1]:5555"],
)  # fmt: skip
def test_an_open_channel_may_stay_on_the_machine(endpoint: str) -> None:
    require_keys("bind", endpoint, None)


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://10.0.0.1:5555", "tcp://[::]:5555",
     "tcp://eth0:5555", "tcp://coordinator:5555", "tcp://[fe80::1]:5555", "udp://127.0.0.1:1",
     "tcp://", "nonsense", "tcp://127.0.0.1.example.org:5555"],
)  # fmt: skip
def test_an_open_channel_may_not_leave_it(endpoint: str) -> None:
    with pytest.raises(ValueError, match=f"^bind: .*{CHANNEL_SECRET}"):
        CoordinatorChannel(endpoint)
    with pytest.raises(ValueError, match=f"^coordinator: .*{CHANNEL_SECRET}"):
        WorkerChannel(endpoint, "w")
    require_keys("bind", endpoint, channel_keys(TEXT))


def test_a_secret_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{TEXT}\n")
    assert secret_setting({}, "X") == secret_setting({"X": ""}, "X") == ""
    assert secret_setting({"X": TEXT}, "X") == TEXT
    assert secret_setting({"X_FILE": str(path)}, "X") == TEXT
    assert secret_setting({"X": "", "X_FILE": str(path)}, "X") == TEXT


def test_a_bad_secret_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, why in (("none", "No such file"), ("empty", "empty"), ("binary", "UTF-8")):
        with pytest.raises(ValueError, match=f"^X_FILE: .*{why}"):
            secret_setting({"X_FILE": str(tmp_path / name)}, "X")
    with pytest.raises(ValueError, match="X and X_FILE"):
        secret_setting({"X": TEXT, "X_FILE": str(tmp_path / "empty")}, "X")
