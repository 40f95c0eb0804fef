"""The self-test of every pair, as ``baton doctor`` runs it: real processes, the real path."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from deploy.findings import Finding

_START_S = 120.0
_TEST_S = 120.0
_END_S = 10.0
_SLOW_GB_PER_S = {"cpu": 0.1, "cuda": 150.0}
_ADVICE = "see nvidia-smi topo -m, nvidia-smi nvlink -s, and the kernel's log (Xid)"


@dataclass(frozen=True)
class _Exporter:
    device: str
    process: "subprocess.Popen[str]"
    line: str


def pairs(devices: list[str], environ: Mapping[str, str]) -> list[Finding]:
    """Test each of ``devices`` (cpu, cuda:N) against each other one, a single one against itself.

    A process for each device exports, then one for each pulls from all others.
    """
    with contextlib.ExitStack() as cleanup:
        exporters, findings = [], []
        started = [(device, _start("export", device, environ)) for device in devices]
        for _, process in started:
            cleanup.callback(_end, process)
        for device, process in started:
            line = _first_line(process)
            if line:
                exporters.append(_Exporter(device, process, line))
            else:
                findings.append(_failed(f"{device} exports nothing", process))
        for device in devices:
            findings += _pulled(device, exporters, environ)
        return findings


def _pulled(device: str, exporters: list[_Exporter], environ: Mapping[str, str]) -> list[Finding]:
    peers = [e for e in exporters if e.device != device] or exporters
    if not peers:
        return []
    process = _start("pull", device, environ)
    try:
        said, complaint = process.communicate("".join(e.line for e in peers), _TEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        text = f"{device} did not finish its tests in {_TEST_S:.0f} s"
        return [Finding("fail", "self-test", text, _ADVICE)]
    results = [msgspec.json.decode(line) for line in said.splitlines()]
    answered = zip(peers, results, strict=False)  # one that dies leaves the rest unanswered
    findings = [_judged(peer.device, device, result) for peer, result in answered]
    if process.returncode:
        last = (complaint.strip().splitlines() or ["nothing"])[-1]
        text = f"{device} could not test: {last}"
        findings.append(Finding("fail", "self-test", text, "run it again with the cause removed"))
    return findings


def _judged(source: str, target: str, result: dict[str, Any]) -> Finding:
    pair = f"{source} -> {target}"
    if problem := result.get("problem"):
        return Finding("fail", "self-test", f"{pair}: {problem}", _ADVICE)
    speed = result["num_bytes"] / result["seconds"] / 1e9
    text = f"{pair}: every byte right, {speed:.1f} GB/s"
    if speed < _SLOW_GB_PER_S[target.partition(":")[0]]:
        return Finding("warn", "self-test", f"{text}, which is slow", _ADVICE)
    return Finding("ok", "self-test", text)


def _start(what: str, device: str, environ: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "engine.pairtest", what, device],
        env=dict(environ), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def _first_line(process: "subprocess.Popen[str]") -> str:
    """What it prints first; "" when it ends or stays silent for too long."""
    assert process.stdout is not None
    late = threading.Timer(_START_S, process.kill)
    late.start()
    try:
        return process.stdout.readline()
    finally:
        late.cancel()


def _failed(what: str, process: "subprocess.Popen[str]") -> Finding:
    assert process.stderr is not None
    said = process.stderr.read().strip().splitlines() or ["it said nothing"]
    return Finding("fail", "self-test", f"{what}: {said[-1]}", "remove the cause it names")


def _end(process: "subprocess.Popen[str]") -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
