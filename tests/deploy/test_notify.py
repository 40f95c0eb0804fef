"""A service's notices, from telemetry/notify.py to the supervisor's socket."""

import os
import select
import socket

import pytest

from deploy.managed_process import Notice, NotifySocket, parse_notice
from telemetry.notify import notify, progress


@pytest.fixture
def heard(short_dir, monkeypatch):
    path = short_dir / "notify.sock"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    listening = NotifySocket(path)
    yield listening
    listening.close()


def test_notices_arrive_in_order_and_say_who_sent_them(heard):
    assert heard.receive() == []
    progress("loading weights", 0.4)
    notify(READY=1, STATUS="two\nlines")
    assert select.select([heard], [], [], 1.0)[0]
    first, second = heard.receive()
    assert first == Notice(os.getpid(), "loading weights 40%", ready=False, fraction=0.4)
    assert second == Notice(os.getpid(), "two lines", ready=True, fraction=None)


@pytest.mark.parametrize(
    "datagram",
    [b"", b"\xff\xfe", b"READY=1", b"X_BATON_PID=b"],
)
def test_a_notice_that_does_not_say_who_sent_it_is_dropped(datagram):
    assert parse_notice(datagram) is None


def test_fraction_stays_between_its_ends(heard):
    progress("far", 7.0)
    (notice,) = heard.receive()
    assert notice.status == "far 100%"


def test_a_service_goes_on_without_a_listener(heard, monkeypatch):
    heard.close()
    notify(READY=1)
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    notify(READY=1)
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY=1)


def test_abstract_address(monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("")  # the kernel picks an abstract name
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + systemd.getsockname()[1:].decode())
        notify(READY=1)
        systemd.settimeout(1.0)
        assert systemd.recv(1000).startswith(b"READY=1\n")
