"""The local supervisor, with real processes that only pretend to serve."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.server import CLOSE_TIMEOUT_S, RECORD_TIMEOUT_S
from deploy.notify_socket import Notice
from deploy.post import SILENCE_S, Post
from deploy.services import Service
from deploy.supervisor import DRAIN_GRACE_S
from tests.deploy.running import ROOT, Up, all_dead

SEGMENTS = Path("/dev/shm")


def test_ready_line_is_the_last_start_up_line_and_sigterm_drains(up):
    baton = up("--prefill", "2", "--decode", "2", "--served-model-name", "tiny")
    baton.until_ready()
    *_, curl, ready = baton.text.splitlines()
    port = ready.split()[1].rsplit(":", 1)[1]
    assert ready == f"ready: http://127.0.0.1:{port} (2 prefill, 2 decode, cpu, tiny)"
    assert f"\n  export BATON_URL=http://127.0.0.1:{port}\n" in baton.text
    assert curl.startswith(f"  curl -sS http://127.0.0.1:{port}/v1/chat/completions")
    assert "decode-2: loading weights 40%" in baton.text
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))
    stops = baton.stops()
    assert stops[0] == "coordinator"
    assert sorted(stops[1:]) == ["decode-1", "decode-2", "prefill-1", "prefill-2"]
    assert all_dead(baton.pids())
    assert baton.leftovers() == []


def test_sigint_during_start_up_drains_too(up):
    baton = up(STUB_DECODE="progress")
    baton.until("decode-1: loading weights")
    baton.signal(signal.SIGINT)
    assert baton.exit_code() == 0
    assert "ready:" not in baton.text
    assert all_dead(baton.pids())


def test_dead_worker_starts_again_while_the_rest_serves(up):
    baton = up(STUB_DECODE="segment helper ready")
    baton.until_ready()
    first, helper = baton.pids("decode-1")
    os.kill(first, signal.SIGKILL)
    baton.until(r"decode-1: killed by SIGKILL; starts again in 0.5 s")
    assert all_dead([helper]), "a dead worker's helper must go with it"
    baton.until(r"(?s)starts again.*decode-1: ready")
    assert not (SEGMENTS / f"baton-stub-{first}").exists()
    assert len(baton.pids("coordinator")) == len(baton.pids("prefill")) == 1
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 0


def test_a_coordinator_that_lacks_redis_is_started_until_it_is_there(up):
    baton = up(STUB_COORDINATOR="first:ready then:lack")
    baton.until_ready()
    os.kill(baton.pids("coordinator")[0], signal.SIGKILL)
    baton.until(r"coordinator: exited with code 75; starts again in 2 s")
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 0


def test_a_coordinator_that_lacks_redis_at_first_ends_everything(up):
    baton = up(STUB_COORDINATOR="lack")
    assert baton.exit_code() == 2
    assert "coordinator: " in baton.text.splitlines()[-1]


def test_it_serves_and_drains_though_nobody_reads_what_it_prints(up):
    baton = up(STUB_DECODE="ready chatty")
    baton.until_ready()
    baton.signal(signal.SIGTERM)
    assert baton.ends(), "it waits for a reader"
    assert set(baton.stops()) == {"coordinator", "prefill-1", "decode-1"}
    assert baton.exit_code() == 0


def test_dead_coordinator_starts_again(up):
    baton = up()
    baton.until_ready()
    port = int(baton.until(r"^ready: http://127.0.0.1:(\d+)")[1])
    os.kill(baton.pids("coordinator")[0], signal.SIGKILL)
    baton.until("coordinator: killed by SIGKILL")
    socket.create_connection(("127.0.0.1", port)).close()  # it waits for the next one
    baton.until(r"(?s)coordinator: killed by SIGKILL.*coordinator: ready")
    assert len(baton.pids("decode")) == len(baton.pids("prefill")) == 1


def test_service_that_cannot_start_ends_everything_with_its_message(up):
    baton = up(STUB_PREFILL="progress refuse")
    assert baton.exit_code() == 2
    assert baton.text.splitlines()[-1] == "error: prefill-1: prefill-1 does not like its settings"
    assert all_dead(baton.pids())
    assert baton.leftovers() == []


def test_worker_that_never_gets_ready_has_three_tries(up):
    baton = up(STUB_DECODE="first:ready then:crash")
    baton.until_ready()
    os.kill(baton.pids("decode")[0], signal.SIGTERM)  # exits 0 unasked: still unexpected
    assert baton.exit_code() == 3
    assert baton.text.splitlines()[-1] == "error: decode-1: exited with code 3"
    assert len(baton.pids("decode")) == 1 + 3
    assert baton.stops()[0] == "decode-1"
    assert all_dead(baton.pids())


def test_a_worker_that_others_stand_in_for_is_tried_again_and_again(up):
    baton = up("--decode", "2", STUB_DECODE="first:ready then:crash")
    baton.until_ready()
    os.kill(baton.pids("decode")[0], signal.SIGTERM)
    baton.until("starts again in 4 s")  # its fourth death in a row; three are the limit
    assert not all_dead(baton.pids("coordinator"), deadline_s=0.0)
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 0
    assert all_dead(baton.pids())


def test_second_signal_stops_at_once(up):
    baton = up("--drain-timeout", "1000", STUB_COORDINATOR="stubborn ready")
    baton.until_ready()
    baton.signal(signal.SIGTERM)
    baton.until("SIGTERM: draining")
    baton.signal(signal.SIGTERM)  # the same order, twice
    assert all_dead(baton.pids("coordinator"), deadline_s=1.2) is False
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 1
    assert all_dead(baton.pids())
    assert baton.leftovers() == []


def test_who_misses_the_drain_deadline_is_killed(up):
    baton = up("--drain-timeout", "0.1", STUB_COORDINATOR="stubborn ready")
    baton.until_ready()
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 1
    assert "coordinator: still there; killing it" in baton.text
    assert set(baton.stops()) == {"prefill-1", "decode-1"}
    assert baton.leftovers() == []


def test_lifeline_notices_a_parent_gone_too_early():
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "deploy/lifeline.py"), "KILL", "1", "echo", "hi"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "the parent 1 is gone already" in done.stderr


def test_silent_start_ends_with_last_words():
    class Hung:
        error = ""
        killed = False

        def kill(self) -> None:
            self.killed = True

    post, hung = Post(Service("decode-1", (), {})), Hung()
    post.taken(hung, now=5.0)
    post.heard(Notice("decode-1", 1, {"STATUS": "loading weights 40%"}), now=7.0)
    assert post.deadline == 7.0 + SILENCE_S
    post.overdue()
    assert hung.killed
    assert hung.error == "not ready and silent for 600 s, last at: loading weights 40%"
    assert post.deadline is None


def test_nothing_outlives_a_killed_supervisor(up):
    baton = up(STUB_DECODE="segment helper ready", STUB_COORDINATOR="stubborn ready")
    baton.until_ready()
    pids = baton.pids()
    assert len(pids) == 4
    assert len(baton.leftovers()) == 1
    os.kill(child_pid(baton, "deploy.guardian"), signal.SIGKILL)
    baton.until("guardian: died; started again")
    baton.signal(signal.SIGKILL)
    assert baton.exit_code() == -signal.SIGKILL  # all who hold its output are gone as well
    assert all_dead(pids, deadline_s=2.0)
    assert baton.leftovers() == []
    assert not list(SEGMENTS.glob(f"baton-stub-{baton.pids('decode-1')[0]}"))


def test_killed_before_it_was_ready(up):
    baton = up(STUB_DECODE="progress")
    baton.until("decode-1: loading")
    baton.signal(signal.SIGKILL)
    baton.exit_code()
    assert all_dead(baton.pids(), deadline_s=2.0)
    assert baton.leftovers() == []


def test_port_in_use_is_told_before_anything_starts(up):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        baton = up("--port", str(port))
        assert baton.exit_code() == 2
    assert baton.text == (
        f"error: --port: {port} on 127.0.0.1 is in use by another process; choose another\n"
    )
    assert baton.pids() == []


def test_own_redis_starts_again_and_leaves_nothing(up):
    baton = up(BATON_REDIS_URL="")
    baton.until_ready()
    first = redis_pid(baton)
    os.kill(first, signal.SIGKILL)
    baton.until(r"(?s)redis: died; starts again.*redis: ready")
    second = redis_pid(baton)
    assert first != second
    baton.signal(signal.SIGKILL)
    baton.exit_code()
    assert all_dead([first, second, *baton.pids()], deadline_s=2.0)
    assert baton.leftovers() == []


def test_stopping_ends_redis_last(up):
    baton = up(BATON_REDIS_URL="", STUB_PREFILL="stubborn ready")
    baton.until_ready()
    redis = redis_pid(baton)
    baton.signal(signal.SIGTERM)
    baton.until("decode-1: stopped")
    assert not all_dead([redis], deadline_s=0.0)
    os.kill(baton.pids("prefill")[0], signal.SIGKILL)
    assert baton.exit_code() == 0
    assert all_dead([redis], deadline_s=0.0)
    assert baton.leftovers() == []


def redis_pid(baton: Up) -> int:
    return child_pid(baton, "redis")


def child_pid(baton: Up, command: str) -> int:
    """The one child of the supervisor whose command line has ``command`` in it."""
    children = Path(f"/proc/{baton.process.pid}/task").glob("*/children")
    pids = [int(pid) for listing in children for pid in listing.read_text().split()]
    return next(p for p in pids if command in Path(f"/proc/{p}/cmdline").read_text())


def test_a_coordinator_has_the_time_to_close_within_its_grace():
    assert CLOSE_TIMEOUT_S + RECORD_TIMEOUT_S < DRAIN_GRACE_S
