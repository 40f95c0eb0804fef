"""A service's notices, from telemetry/notify.py to the supervisor's socket."""

import os
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from deploy.managed_process import Notice, NotifySocket, parse_notice
from telemetry.notify import Progress, notify


@pytest.fixture
def heard(short_dir, monkeypatch):
    path = short_dir / "notify.sock"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    listening = NotifySocket(path)
    yield listening
    listening.close()


def test_notices_arrive_in_order_and_say_who_sent_them(heard):
    assert heard.receive() == []
    Progress("loading weights")(0.4)
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
    Progress("far")(7.0)
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


def fill(path):
    """Send datagrams that are no notices until the queue at ``path`` is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(BlockingIOError):
        sock.connect(str(path))
        sock.setblocking(False)
        while True:
            sock.send(b"full")


def received(listening, num):
    """The next ``num`` notices."""
    notices = []
    while len(notices) < num:
        assert select.select([listening], [], [], 10.0)[0], notices
        notices += listening.receive()
    return notices


def test_while_the_queue_is_full_only_the_last_status_waits_and_the_caller_never_does(heard):
    fill(os.environ["NOTIFY_SOCKET"])
    start, cpu = time.monotonic(), time.process_time()
    for number in range(1000):
        notify(STATUS=f"loading {number}")
    notify(READY=1, STATUS="serving")
    notify(STATUS="fine")
    notify(STATUS="finer")
    notify(STOPPING=1, STATUS="draining")
    assert time.monotonic() - start < 0.5
    # Longer than one attempt to send takes: the service never gives up.
    assert not select.select([], [], [], 1.5)[0]
    assert time.process_time() - cpu < 0.5, "it waits without a core"
    assert [notice.status for notice in received(heard, 2)] == ["serving", "draining"]


READY_AT_THE_END = "from telemetry.notify import notify; notify(READY=1)"


def test_a_service_that_ends_at_once_is_heard(heard):
    fill(os.environ["NOTIFY_SOCKET"])
    service = subprocess.Popen([sys.executable, "-c", READY_AT_THE_END])
    with pytest.raises(subprocess.TimeoutExpired):
        service.wait(1.5)
    (notice,) = received(heard, 1)
    assert (notice.pid, notice.ready, service.wait(10.0)) == (service.pid, True, 0)


def test_progress_is_reported_five_times_a_second_and_at_the_end(heard):
    now = 0.0
    report = Progress("loading weights", clock=lambda: now)
    notices = []
    for number in range(1, 101):
        now = number / 50
        report(number / 100)
        notices += heard.receive()
    assert len(notices) <= 2 * 5 + 1
    assert notices[0].fraction == 0.01
    assert notices[-1].fraction == 1.0


def test_a_sign_of_life_says_no_fraction(heard):
    Progress("waiting")()
    assert heard.receive() == [Notice(os.getpid(), "waiting", ready=False, fraction=None)]
