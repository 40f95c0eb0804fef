"""The local supervisor, with real processes that only pretend to serve."""

import os
import resource
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from redis import Redis

from coordinator.http.server.http_server import CLOSE_TIMEOUT_S
from coordinator.server import RECORD_TIMEOUT_S
from deploy.die_with_parent import die_with_parent
from deploy.managed_process import ManagedProcess
from deploy.services import Service
from deploy.supervisor import DRAIN_GRACE_S
from tests.deploy.running import DEADLINE_S, Up, all_dead
from tests.e2e.limits import no_more

SEGMENTS = Path("/dev/shm")


def test_ready_line_is_the_last_start_up_line_and_sigterm_drains(up):
    baton = up("--prefill", "2", "--decode", "2", "--served-model-name", "tiny")
    baton.start()
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
    assert all_dead(baton.reported())
    assert baton.leftovers() == []


def test_sigint_during_start_up_drains_too(up):
    baton = up(STUB_DECODE="progress")
    baton.until("decode-1: loading weights")
    baton.signal(signal.SIGINT)
    assert baton.exit_code() == 0
    assert "ready:" not in baton.text
    assert all_dead(baton.reported())


def test_dead_worker_starts_again_while_the_rest_serves(up):
    baton = up(STUB_DECODE="segment helper ready")
    baton.start()
    first, helper = baton.reported("decode-1")
    os.kill(first, signal.SIGKILL)
    baton.until(r"decode-1: killed by SIGKILL; starts again in 0.05 s")
    assert all_dead([helper]), "a dead worker's helper must go with it"
    baton.until_after("starts again", "decode-1: ready")
    assert not (SEGMENTS / f"baton-stub-{first}").exists()
    assert len(baton.reported("coordinator")) == len(baton.reported("prefill")) == 1
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 0


def test_a_coordinator_that_lacks_redis_is_started_until_it_is_there(up):
    baton = up(STUB_COORDINATOR="first:ready then:lack")
    baton.start()
    os.kill(baton.reported("coordinator")[0], signal.SIGKILL)
    baton.until(r"coordinator: exited with code 75; starts again in 2 s")
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 0


def test_a_coordinator_that_lacks_redis_at_first_ends_everything(up):
    baton = up(STUB_COORDINATOR="lack")
    assert baton.exit_code() == 2
    assert "coordinator: " in baton.text.splitlines()[-1]


def test_it_serves_and_drains_while_its_output_is_not_read(up):
    baton = up(STUB_DECODE="ready chatty")
    baton.reading.clear()
    baton.start()
    baton.signal(signal.SIGTERM)
    baton.process.wait(DEADLINE_S)
    baton.reading.set()
    assert set(baton.stops()) == {"coordinator", "prefill-1", "decode-1"}
    assert baton.exit_code() == 0


def test_dead_coordinator_starts_again(up):
    baton = up()
    baton.start()
    port = int(baton.url.rsplit(":", 1)[1])
    os.kill(baton.reported("coordinator")[0], signal.SIGKILL)
    baton.until("coordinator: killed by SIGKILL")
    socket.create_connection(("127.0.0.1", port)).close()  # it waits for the next one
    baton.until_after("coordinator: killed by SIGKILL", "coordinator: ready")
    assert len(baton.reported("decode")) == len(baton.reported("prefill")) == 1
    baton.until("coordinator: killed by SIGKILL; starts again in 0 s")


def test_service_that_cannot_start_ends_everything_with_its_message(up):
    baton = up(STUB_PREFILL="progress refuse")
    assert baton.exit_code() == 2
    assert baton.text.splitlines()[-1] == "error: prefill-1: prefill-1 does not like its settings"
    assert all_dead(baton.reported())
    assert baton.leftovers() == []


def test_worker_that_never_gets_ready_has_three_tries(up):
    baton = up(STUB_DECODE="first:ready then:crash")
    baton.start()
    os.kill(baton.reported("decode")[0], signal.SIGTERM)  # exits 0 unasked: still unexpected
    assert baton.exit_code() == 3
    assert baton.text.splitlines()[-1] == "error: decode-1: exited with code 3"
    assert len(baton.reported("decode")) == 1 + 3
    assert baton.stops()[0] == "decode-1"
    assert all_dead(baton.reported())


def test_a_worker_that_others_stand_in_for_is_tried_again_and_again(up):
    baton = up("--decode", "2", STUB_DECODE="first:ready then:crash")
    baton.start()
    os.kill(baton.reported("decode")[0], signal.SIGTERM)
    baton.until("starts again in 0.4 s")  # its fourth death in a row; three are the limit
    assert not all_dead(baton.reported("coordinator"), deadline_s=0.0)
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 0
    assert all_dead(baton.reported())


def test_second_signal_stops_at_once(up):
    baton = up("--drain-timeout", "1000", STUB_COORDINATOR="stubborn ready")
    baton.start()
    baton.signal(signal.SIGTERM)
    baton.until("SIGTERM: draining")
    baton.signal(signal.SIGTERM)  # the same order, twice
    assert all_dead(baton.reported("coordinator"), deadline_s=1.2) is False
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 1
    assert all_dead(baton.reported())
    assert baton.leftovers() == []


def test_a_service_that_misses_the_drain_deadline_is_killed(up):
    baton = up("--drain-timeout", "0.1", STUB_COORDINATOR="stubborn ready")
    baton.start()
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 1
    assert "coordinator: still running; killing it" in baton.text
    assert set(baton.stops()) == {"prefill-1", "decode-1"}
    assert baton.leftovers() == []


def test_a_parent_that_is_gone_before_the_request_is_noticed():
    *starter, _, command, argument = die_with_parent(["echo", "hi"])
    done = subprocess.run(
        [*starter, "1", command, argument], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "the parent 1 is gone already" in done.stderr


async def test_a_silent_start_is_killed_and_says_what_it_last_did():
    service = Service("decode-1", ("sh", "-c", "echo hello; exec sleep 1000"), dict(os.environ))
    process, lines = ManagedProcess(service, silence_s=0.2), []
    process.status = "loading weights 40%"
    assert await process.run(lines.append) == -signal.SIGKILL
    assert process.error == "not ready and silent for 0.2 s, last at: loading weights 40%"


async def test_a_process_that_is_ready_may_be_silent():
    service = Service("decode-1", ("sh", "-c", "echo ready; sleep 0.5; exit 7"), dict(os.environ))
    process = ManagedProcess(service, silence_s=30.0)
    assert await process.run(lambda line: process.progressed(line, ready=True)) == 7
    assert process.error == ""
    assert process.ready_for_s > 0.0


def test_nothing_outlives_a_killed_supervisor(up):
    baton = up(STUB_DECODE="segment helper ready", STUB_COORDINATOR="stubborn ready")
    baton.start()
    pids = baton.reported()
    assert len(pids) == 4
    assert len(baton.leftovers()) == 1
    guardian = child_pid(baton, "deploy.rundir")
    baton.signal(signal.SIGKILL)
    assert baton.exit_code() == -signal.SIGKILL  # all who hold its output are gone as well
    assert all_dead([*pids, guardian])
    assert baton.leftovers() == []
    assert not segment_of(baton).exists()


def test_the_guardian_is_given_no_settings(up):
    secrets = {"BATON_API_KEYS": "a:sk-0123456789abcdef", "BATON_CHANNEL_SECRET": "s" * 40}
    baton = up(STUB_DECODE="ready", **secrets)
    baton.start()
    guardian = child_pid(baton, "deploy.rundir")
    environ = Path(f"/proc/{guardian}/environ").read_bytes()
    assert b"PATH=" in environ
    assert b"BATON_" not in environ
    baton.signal(signal.SIGTERM)
    baton.exit_code()


def test_the_next_start_removes_what_a_supervisor_killed_with_its_guardian_left(up):
    baton = up(STUB_DECODE="segment helper ready")
    baton.start()
    helper, *services = baton.reported("decode-1-helper") + baton.reported()
    os.kill(child_pid(baton, "deploy.rundir"), signal.SIGKILL)
    baton.signal(signal.SIGKILL)
    assert all_dead([pid for pid in services if pid != helper])
    assert len(baton.leftovers()) == 1
    assert segment_of(baton).exists()
    successor = up(XDG_RUNTIME_DIR=str(baton.base))
    successor.start()
    assert all_dead([helper], deadline_s=0.0)
    assert not segment_of(baton).exists()
    successor.signal(signal.SIGTERM)
    assert successor.exit_code() == 0
    assert baton.leftovers() == []


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_NOFILE])
def test_a_guardian_that_gets_no_more_memory_or_descriptors_leaves_the_rest_to_the_next_start(
    up, limit
):
    baton = up(STUB_DECODE="segment helper ready")
    baton.start()
    helper, *services = baton.reported("decode-1-helper") + baton.reported()
    guardian = child_pid(baton, "deploy.rundir")
    no_more(guardian, limit)
    baton.signal(signal.SIGKILL)
    assert all_dead([guardian, *(pid for pid in services if pid != helper)])
    successor = up(XDG_RUNTIME_DIR=str(baton.base))
    successor.start()
    assert all_dead([helper], deadline_s=0.0)
    assert not segment_of(baton).exists()
    successor.signal(signal.SIGTERM)
    assert successor.exit_code() == 0
    assert baton.leftovers() == []


def segment_of(baton: Up) -> Path:
    return SEGMENTS / f"baton-stub-{baton.reported('decode-1')[0]}"


def test_killed_before_it_was_ready(up):
    baton = up(STUB_DECODE="progress")
    baton.until("decode-1: loading")
    baton.signal(signal.SIGKILL)
    baton.exit_code()
    assert all_dead(baton.reported(), deadline_s=2.0)
    assert baton.leftovers() == []


def test_a_port_in_use_is_an_error_before_any_process_starts(up):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        baton = up("--port", str(port))
        assert baton.exit_code() == 2
    assert baton.text == (
        f"error: --port: {port} on 127.0.0.1 is in use by another process; choose another\n"
    )
    assert baton.reported() == []


def test_own_redis_starts_again_and_leaves_nothing(up):
    baton = up(BATON_REDIS_URL="")
    baton.start()
    first = redis_pid(baton)
    with redis_of(baton) as client:
        client.set("kept", "1")
    os.kill(first, signal.SIGKILL)
    baton.until_after("redis: killed by SIGKILL; starts again", "redis: ready")
    second = redis_pid(baton)
    assert first != second
    with redis_of(baton) as client:
        assert client.get("kept") == b"1"
    baton.signal(signal.SIGKILL)
    baton.exit_code()
    assert all_dead([first, second, *baton.reported()], deadline_s=2.0)
    assert baton.leftovers() == []


def test_stopping_ends_redis_last(up):
    baton = up(BATON_REDIS_URL="", STUB_PREFILL="stubborn ready")
    baton.start()
    redis = redis_pid(baton)
    baton.signal(signal.SIGTERM)
    baton.until("decode-1: stopped")
    assert not all_dead([redis], deadline_s=0.0)
    os.kill(baton.reported("prefill")[0], signal.SIGKILL)
    assert baton.exit_code() == 0
    assert all_dead([redis], deadline_s=0.0)
    assert baton.leftovers() == []


def redis_of(baton: Up) -> Redis:
    (folder,) = baton.leftovers()
    return Redis(unix_socket_path=str(folder / "redis.sock"))


def redis_pid(baton: Up) -> int:
    return child_pid(baton, "redis")


def child_pid(baton: Up, command: str) -> int:
    """The one child of the supervisor whose command line has ``command`` in it."""
    return next(p for p in baton.children() if command in Path(f"/proc/{p}/cmdline").read_text())


def test_a_coordinator_has_the_time_to_close_within_its_grace():
    assert CLOSE_TIMEOUT_S + RECORD_TIMEOUT_S < DRAIN_GRACE_S
