"""The self-test of ``baton doctor``: real processes copy between every pair of devices."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from deploy.findings import Finding, last_line

_START_S = 120.0
_TEST_S = 120.0
_END_S = 10.0
_SLOW_GB_PER_S = {"cpu": 0.1, "cuda": 150.0}
_ADVICE = "see nvidia-smi topo -m, nvidia-smi nvlink -s, and the kernel's log (Xid)"


def pairs(devices: list[str], environ: Mapping[str, str]) -> list[Finding]:
    """Test each of ``devices`` (cpu, cuda:N) with each other; a single one with itself.

    One process for each device exports memory; then, one after the other, a process for each
    device pulls from all exporters.
    """
    with contextlib.ExitStack() as cleanup:
        started = [_Exporter(device, environ) for device in devices]
        for exporter in started:
            cleanup.callback(exporter.close)
        findings = [problem for exporter in started if (problem := exporter.wait())]
        exporters = [exporter for exporter in started if exporter.line]
        for device in devices:
            peers = [e for e in exporters if e.device != device] or exporters
            if peers:
                findings += _pull(device, peers, environ)
        return findings


class _Exporter:
    """A process that exports memory of ``device`` until ``close``. ``line``: how to reach it, empty
    if it could not export."""

    def __init__(self, device: str, environ: Mapping[str, str]) -> None:
        self.device, self.line = device, ""
        self._process = subprocess.Popen(
            _command("export", device), env=dict(environ), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def wait(self) -> Finding | None:
        """Wait until it exports. Returns a finding if it ends, or prints nothing in time."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        deadline = threading.Timer(_START_S, self._process.kill)
        deadline.start()
        self.line = self._process.stdout.readline()
        deadline.cancel()
        if self.line:
            return None
        text = f"{self.device} exports nothing: {last_line(self._process.stderr.read())}"
        return Finding("fail", "self-test", text, "remove the cause that is named, and try again")

    def close(self) -> None:
        """End it, by the end of its input."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _pull(device: str, peers: list[_Exporter], environ: Mapping[str, str]) -> list[Finding]:
    try:
        done = subprocess.run(
            _command("pull", device), env=dict(environ), input="".join(e.line for e in peers),
            capture_output=True, text=True, timeout=_TEST_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        text = f"{device} did not finish its tests in {_TEST_S:.0f} s"
        return [Finding("fail", "self-test", text, _ADVICE)]
    results = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    # A process that ends early has fewer results than peers.
    findings = [_judge(e.device, device, result) for e, result in zip(peers, results, strict=False)]
    if done.returncode:
        text = f"{device} could not test: {last_line(done.stderr)}"
        advice = "remove the cause that is named, and try again"
        findings.append(Finding("fail", "self-test", text, advice))
    return findings


def _judge(source: str, target: str, result: dict[str, Any]) -> Finding:
    pair = f"{source} -> {target}"
    if problem := result.get("problem"):
        return Finding("fail", "self-test", f"{pair}: {problem}", _ADVICE)
    speed = result["num_bytes"] / result["seconds"] / 1e9
    text = f"{pair}: every byte right, {speed:.1f} GB/s"
    if speed < _SLOW_GB_PER_S[target.partition(":")[0]]:
        return Finding("warn", "self-test", f"{text}, which is slow", _ADVICE)
    return Finding("ok", "self-test", text)


def _command(what: str, device: str) -> list[str]:
    return [sys.executable, "-m", "worker.pairtest", what, device]
