"""What the doctor says about machines that are well, and about such as are not."""

import json
import os
import resource
import socket
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.http.server.open_files import allow_open_files
from deploy import gpu_checks, host_checks, pair_checks
from deploy.cli import app
from deploy.gpus import listed_gpus
from tests.local_redis import LocalRedis
from worker.gpu_locks.marks import mark_unfit

ROOT = Path(__file__).resolve().parents[2]
SMI = """#!/bin/sh
echo '0, GPU-aa, NVIDIA H200, {driver}, {used}, 143771, {mig}'
echo '1, GPU-bb, NVIDIA H200, {driver}, 4, 143771, Disabled'
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(driver: str = "580.65.06", used: int = 4, mig: str = "Disabled") -> None:
        fake = tmp_path / "nvidia-smi"
        fake.write_text(SMI.format(driver=driver, used=used, mig=mig))
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
        monkeypatch.setattr(gpu_checks, "find_spec", lambda name: object())

    return install


def levels(findings) -> list[tuple[str, str]]:
    return [(finding.level, finding.topic) for finding in findings]


def test_a_machine_without_gpus_passes_with_a_pair_that_was_really_tested() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    answer = CliRunner().invoke(app, ["doctor", "--device", "cpu", "--port", str(port)])
    assert answer.exit_code == 0, answer.output
    assert "self-test      cpu -> cpu: every byte right" in answer.output
    assert "0 failed" in answer.output


def test_a_failed_check_has_advice_and_the_command_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.doctor.pairs", lambda devices, environ: [])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        asked = ["doctor", "--device", "cpu", "--port", port]
        answer = CliRunner().invoke(app, [*asked, "--redis-url", "redis://:secret@127.0.0.1:1"])
    assert answer.exit_code == 1
    assert f"fail  ports          --port: {port} on 127.0.0.1 is in use" in answer.output
    assert "fail  redis          does not answer: ConnectionError -> check" in answer.output
    assert "secret" not in answer.output
    assert "2 failed" in answer.output


def test_cuda_that_is_wanted_but_not_there_fails(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = CliRunner().invoke(app, ["doctor", "--device", "cuda"])
    assert answer.exit_code == 1
    assert "fail  gpus           none is visible" in answer.output


def test_a_redis_that_answers_is_named_with_its_version(tmp_path: Path) -> None:
    server = LocalRedis(tmp_path / "redis")
    server.start()
    try:
        finding = host_checks.redis_server(server.url, {})
    finally:
        server.stop()
    assert finding.level == "ok"
    assert "answers" in finding.text


@pytest.mark.parametrize(
    ("url", "environ", "said"),
    [
        ("there:6379", {}, "--redis-url: must start with redis://, rediss:// or unix://"),
        ("redis://:secret@there", {"BATON_REDIS_PASSWORD": "secret"}, "holds a password as well"),
        ("redis://there", {"BATON_REDIS_PASSWORD_FILE": "/no/secret"}, "_FILE: cannot read"),
    ],
)
def test_a_redis_that_is_named_wrongly_is_told_from_one_that_is_away(
    url: str, environ: dict[str, str], said: str
) -> None:
    finding = host_checks.redis_server(url, environ)
    assert finding.level == "fail"
    assert said in finding.text
    assert ":secret" not in finding.line()


@pytest.mark.parametrize(
    ("host", "number", "said", "advice"),
    [
        ("127.0.0.1", 99_999, "--port: 99999 is not between 0", "choose another by --port"),
        ("127.0.0.1", -1, "--port: -1 is not between 0", "choose another by --port"),
        ("192.0.2.1", 8000, "--host: 192.0.2.1 is not an address", "give an address"),
        ("no.invalid", 8000, "--host: cannot resolve no.invalid", "give an address"),
    ],
)
def test_what_cannot_be_listened_on_is_named_with_its_setting(
    host: str, number: int, said: str, advice: str
) -> None:
    finding = host_checks.port(host, number)
    assert finding.level == "fail"
    assert finding.text.startswith(said)
    assert finding.advice.startswith(advice)


def test_a_number_of_clients_that_the_coordinator_refuses_fails() -> None:
    assert host_checks.open_files(0).level == "fail"


def test_a_proc_of_another_namespace_is_found(tmp_path: Path) -> None:
    assert host_checks.namespaces().level == "ok"
    (tmp_path / "self").symlink_to("1")
    found = host_checks.namespaces(tmp_path)
    assert (found.level, found.topic) == ("fail", "namespaces")
    assert f"process {os.getpid()} is 1 there" in found.text
    assert host_checks.namespaces(tmp_path / "none").level == "fail"


def test_little_shared_memory_fails_only_where_caches_lie_there(monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage())
    assert host_checks.shared_memory(needed=True).level == "fail"
    assert host_checks.shared_memory(needed=False).level == "warn"


class Usage:
    free, total = 60 << 20, 64 << 20


@pytest.mark.parametrize(
    ("spread", "num_gpus", "level", "said"),
    [
        ("auto", 4, "ok", "on 4 GPUs can compute together"),
        ("32", 1, "warn", "GPUs: 1, and it takes two"),
        ("auto", 1, "ok", "GPUs: 1, and it takes two"),
        ("on", 4, "fail", "--spread: 'on' is not auto, off or a number"),
    ],
)
def test_spread_steps_need_two_gpus(spread: str, num_gpus: int, level: str, said: str) -> None:
    found = host_checks.spread_steps(spread, num_gpus=num_gpus)
    assert (found.level, found.topic) == (level, "spread steps")
    assert said in found.text


@pytest.mark.parametrize(
    ("soft", "hard", "level"),
    [
        (1024, 16_895, "fail"),
        (1024, 16_896, "ok"),
        (1024, resource.RLIM_INFINITY, "ok"),
        (16_384, 16_384, "fail"),
        (100, 200, "fail"),
    ],
)
def test_the_hard_limit_of_open_files_decides_as_it_does_for_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, level: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", lambda which, to: None)
    assert host_checks.open_files(16_384).level == level
    with pytest.raises(ValueError, match="max_open") if level == "fail" else nullcontext():
        allow_open_files("max_open", 16_384)


READY = {"ready": True, "problems": [], "redis_connected": True}


@pytest.mark.parametrize(
    ("answer", "level", "said"),
    [
        (READY, "ok", "is Baton's, which is ready"),
        ({**READY, "ready": False, "error": {}}, "ok", "is Baton's, which is not ready"),
        ({"status": "ok"}, "fail", "in use by another process"),
        ([], "fail", "in use by another process"),
        ("<html>", "fail", "in use by another process"),
    ],
)
def test_a_port_that_baton_itself_listens_on_is_well(answer, level: str, said: str) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(200 if answer == READY else 503)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        finding = host_checks.port("127.0.0.1", server.server_port)
    assert finding.level == level
    assert said in finding.text


def test_gpus_that_no_worker_gets(smi, tmp_path: Path) -> None:
    smi()
    gpus = listed_gpus()
    folder = tmp_path / "locks"
    environ = {"BATON_GPU_LOCK_DIR": str(folder)}
    assert gpu_checks.locks(gpus, environ) == [], "the first worker will make the folder"
    folder.mkdir()
    mark_unfit(folder, "GPU-bb", "Xid 48: an uncorrected memory error", for_s=600.0)
    (found,) = gpu_checks.locks(gpus, environ)
    assert (found.level, found.topic) == ("warn", "gpus")
    assert found.text.startswith("GPU-bb is unfit for another 10 min (Xid 48: ")
    clear = f"then clear with rm {folder}/GPU-bb.unfit"
    assert found.advice == f"reset with nvidia-smi -r -i GPU-bb, {clear}"
    mark_unfit(folder, "GPU-aa", "Xid 46: the GPU stopped processing", for_s=600.0)
    every = gpu_checks.locks(gpus, environ)
    assert levels(every) == [("warn", "gpus"), ("warn", "gpus"), ("fail", "gpus")]


def test_a_folder_in_which_workers_cannot_lock_gpus(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "missing" / "locks"):
        (found,) = gpu_checks.locks([], {"BATON_GPU_LOCK_DIR": str(folder)})
        assert found.text == f"workers cannot lock GPUs in {folder}"
        assert "BATON_GPU_LOCK_DIR" in found.advice


def test_gpus_that_are_well(smi) -> None:
    smi()
    gpus, findings = gpu_checks.driver({})
    assert [gpu.uuid for gpu in gpus] == ["GPU-aa", "GPU-bb"]
    well = [("ok", "gpus"), ("ok", "gpus"), ("ok", "models"), ("ok", "driver")]
    assert levels(findings) == well


@pytest.mark.parametrize(
    ("fault", "environ", "expected"),
    [
        ({"driver": "535.1"}, {}, ("fail", "driver", "version 535.1")),
        ({"used": 70_000}, {}, ("warn", "gpus", "70000 of 143771 MiB used")),
        ({"mig": "Enabled"}, {}, ("fail", "gpus", "0 NVIDIA H200 is in MIG mode")),
        ({}, {"CUDA_VISIBLE_DEVICES": "0"}, ("warn", "gpus", "CUDA_VISIBLE_DEVICES=0 hides")),
    ],
)
def test_gpus_that_are_not(smi, fault, environ, expected) -> None:
    smi(**fault)
    level, topic, text = expected
    bad = [f for f in gpu_checks.driver(environ)[1] if f.level != "ok"]
    assert levels(bad) == [(level, topic)]
    assert text in bad[0].text
    assert bad[0].advice


REPORT = (
    '{"uuids":["GPU-aa","GPU-bb"],"names":["H200","H200"],"capabilities":[[9,0],[%d,0]],'
    '"peers":[[true,true],[%s,true]]}'
)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let a shell script take the place of ``python -m worker.pairtest``."""

    def install(script: str) -> None:
        fake = tmp_path / "python"
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))

    return install


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"echo '{REPORT % (9, 'true')}'", ("ok", "peer access", "all 2 GPUs to all others")),
        (f"echo '{REPORT % (9, 'false')}'", ("fail", "peer access", "not 1 from 0")),
        (f"echo '{REPORT % (7, 'true')}'", ("fail", "cuda", "compute capability 7.0")),
        (f"echo '{REPORT % (8, 'true')}'", ("warn", "cuda", "compute capability 8.0")),
        ("echo 'error: device: no CUDA' >&2; exit 2", ("fail", "cuda", "error: device: no CUDA")),
    ],
)
def test_the_findings_about_cuda(python, script, expected) -> None:
    python(script)
    level, topic, text = expected
    first = gpu_checks.peers(dict(os.environ))[1][0]
    assert (first.level, first.topic) == (level, topic)
    assert text in first.text


@pytest.mark.parametrize(
    ("why", "said"), [("", "Triton and cuDNN"), ("cuDNN is old", "Triton (cuDNN is old)")]
)
def test_how_prompts_behind_deep_contexts_are_computed(python, why: str, said: str) -> None:
    report = (REPORT % (9, "true")).removesuffix("}") + f',"no_cudnn":"{why}"}}'
    python(f"echo '{report}'")
    last = gpu_checks.peers(dict(os.environ))[1][-1]
    assert (last.level, last.topic) == ("ok", "kernels")
    in_fp8 = "int8 on tensor cores with --quantize fp8"
    assert last.text == f"prompts behind deep contexts: {said}; {in_fp8}"


@pytest.mark.parametrize(("major", "where"), [(8, "between"), (9, "beside")])
def test_whether_gpus_are_divided(python, major: int, where: str) -> None:
    python(f"echo '{REPORT % (major, 'true')}'")
    said = [each.text for each in gpu_checks.peers(dict(os.environ))[1]]
    assert f"long prompts of a worker without a spread group: {where} decode steps" in said


EXPORTS = 'if [ $3 = export ]; then echo "{}"; read line; exit; fi\nread line\n'


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (EXPORTS + """echo '{"num_bytes": 85000000, "seconds": 0.00024}'""",
         ("ok", "cuda:1 -> cuda:0: every byte right, 354.2 GB/s")),
        (EXPORTS + """echo '{"num_bytes": 85000000, "seconds": 0.0024}'""",
         ("warn", "35.4 GB/s, which is slow")),
        (EXPORTS + """echo '{"problem": "3 of 9 bytes arrived wrong"}'""",
         ("fail", "cuda:1 -> cuda:0: 3 of 9 bytes arrived wrong")),
        (EXPORTS + "echo 'error: no room' >&2; exit 2",
         ("fail", "cuda:0 could not test: error: no room")),
        ("echo 'error: cannot export' >&2; exit 2",
         ("fail", "cuda:0 exports nothing: error: cannot export")),
    ],
)  # fmt: skip
def test_the_findings_of_a_pairs_test(python, script, expected) -> None:
    python(script)
    level, text = expected
    first = pair_checks.pairs(["cuda:0", "cuda:1"], dict(os.environ))[0]
    assert first.level == level
    assert text in first.text
