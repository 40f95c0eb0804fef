"""The checks of ``baton doctor`` on any machine: versions, Redis, port, /proc, memory, limits, and
steps that workers compute together."""

import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx
import redis

from coordinator.core.settings import HubSettings
from coordinator.http.server.open_files import SPARE_FILES
from coordinator.record.settings import PASSWORD, check_redis_password, check_redis_url
from decode.spread_policy import require_spread
from deploy.findings import Finding
from deploy.ports import base_url, claim_port, reachable
from deploy.services import RedisServerError, find_redis_server
from transport.copy.shm import DIRECTORY
from transport.wire.secret_setting import secret_setting

_TIMEOUT_S = 5.0
_ANSWER_S = 2.0
_MIN_PYTHON = (3, 11)
_MIN_REDIS = (6, 2)
_PACKAGES = ("torch", "triton", "cupy-cuda13x", "pyzmq", "redis")
_MIN_SHM_BYTES = 512 << 20


def versions() -> Finding:
    found = [f"Python {platform.python_version()}", f"Linux {platform.release()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    text = ", ".join(found)
    if sys.version_info[:2] < _MIN_PYTHON:
        return Finding("fail", "versions", text, "install Python 3.11 to 3.13")
    if any(missing in found for missing in ("no torch", "no triton", "no pyzmq", "no redis")):
        return Finding("fail", "versions", text, "install what is missing: make setup")
    return Finding("ok", "versions", text)


def redis_server(url: str | None, environ: Mapping[str, str]) -> Finding:
    """Check the Redis at ``url``; without one, the program that ``baton up`` would start."""
    if url is not None:
        return _given_redis(url, environ)
    try:
        binary = find_redis_server()
        answer = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        ).stdout.strip()
    except (RedisServerError, OSError, subprocess.SubprocessError) as error:
        advice = "install redis-server, or name a running one by --redis-url"
        return Finding("fail", "redis", str(error), advice)
    return Finding("ok", "redis", f"none given; {binary.name} can be started: {answer[:60]}")


def _given_redis(url: str, environ: Mapping[str, str]) -> Finding:
    try:
        check_redis_url(url, "--redis-url")
        password = secret_setting(environ, PASSWORD)
        check_redis_password(url, password)
    except ValueError as error:  # it shows no part of the URL or the password
        return Finding("fail", "redis", str(error), "correct the setting")
    try:
        with redis.Redis.from_url(
            url,
            password=password or None,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
        ) as client:
            found = str(client.info("server")["redis_version"])
    except (redis.RedisError, ValueError, OSError) as error:  # may hold the password
        advice = "check --redis-url, its password, and that the server runs and can be reached"
        return Finding("fail", "redis", f"does not answer: {type(error).__name__}", advice)
    if tuple(int(part) for part in found.split(".")[:2]) < _MIN_REDIS:
        return Finding("fail", "redis", f"version {found}", "needs 6.2 or newer")
    return Finding("ok", "redis", f"version {found} answers")


def port(host: str, number: int) -> Finding:
    try:
        claim_port(host, number)
    except ValueError as error:
        if found := _baton_at(base_url(reachable(host), number)):
            return Finding("ok", "ports", f"{number} on {host} is Baton's, which is {found}")
        advice = "choose another by --port, or end the process that listens there"
        if str(error).startswith("--host"):
            advice = "give an address of this machine, or 0.0.0.0 for all"
        return Finding("fail", "ports", str(error), advice)
    return Finding("ok", "ports", f"{number} on {host} is free")


def _baton_at(url: str) -> str:
    """Readiness of the Baton that listens there; "" if it is another program."""
    try:
        answer = httpx.get(f"{url}/ready", timeout=_ANSWER_S).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return ""
    if not isinstance(answer, dict) or not {"ready", "problems", "redis_connected"} <= set(answer):
        return ""
    return "ready" if answer["ready"] is True else "not ready"


def namespaces(proc: Path = Path("/proc")) -> Finding:
    """Check /proc: CUDA IPC finds processes by it, so it must show their own PID namespace."""
    advice = "mount a fresh /proc for this PID namespace (unshare --mount-proc, or the container's)"
    try:
        shown = os.readlink(proc / "self")
    except OSError as error:
        return Finding("fail", "namespaces", f"{proc}/self: {error.strerror}", advice)
    if shown != str(os.getpid()):
        text = f"{proc} belongs to another PID namespace: process {os.getpid()} is {shown} there"
        return Finding("fail", "namespaces", text, advice)
    return Finding("ok", "namespaces", f"{proc} is that of this PID namespace")


def shared_memory(*, needed: bool) -> Finding:
    """Check /dev/shm. ``needed``: workers on the CPU keep their caches there."""
    try:
        usage = shutil.disk_usage(DIRECTORY)
    except OSError as error:
        text, advice = f"{DIRECTORY}: {error.strerror}", "mount a tmpfs at /dev/shm"
        return Finding("fail" if needed else "warn", "shared memory", text, advice)
    text = f"{usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free in {DIRECTORY}"
    if usage.free < _MIN_SHM_BYTES:
        advice = "make it larger (containers: shm_size, --shm-size=2g)"
        return Finding("fail" if needed else "warn", "shared memory", text, advice)
    return Finding("ok", "shared memory", text)


def spread_steps(spread: str, *, num_gpus: int) -> Finding:
    """Check whether decode workers here can compute steps together; ``spread`` is not off."""
    try:
        require_spread(spread, "--spread")
    except ValueError as error:
        return Finding("fail", "spread steps", str(error), "say one of these")
    problem, advice = "", ""
    if num_gpus < 2:
        problem, advice = f"GPUs: {num_gpus}, and it takes two", "--spread off"
    elif not os.access(DIRECTORY, os.W_OK):
        problem = f"workers cannot write their records into {DIRECTORY}"
        advice = "mount a tmpfs there, writable for workers"
    if not problem:
        return Finding("ok", "spread steps", f"workers on {num_gpus} GPUs can compute together")
    text = f"--spread {spread}, but none are computed together: {problem}"
    if spread == "auto":  # where it can be done, and pays
        return Finding("ok", "spread steps", f"{text} ({advice})")
    return Finding("warn", "spread steps", text, advice)


def open_files(max_open: int) -> Finding:
    """Check the limit of open files: each of ``max_open`` clients needs one. The coordinator raises
    its soft limit to the hard limit, and does not start if that is too low."""
    try:
        HubSettings(max_open=max_open)
    except ValueError as error:
        return Finding("fail", "limits", str(error), "set BATON_MAX_OPEN to 1 or more")
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_open + SPARE_FILES
    if limit == resource.RLIM_INFINITY or limit >= needed:
        number = "any number of" if limit == resource.RLIM_INFINITY else limit
        text = f"{number} open files, enough for {max_open} clients at a time"
        return Finding("ok", "limits", text)
    advice = f"ulimit -Hn {needed}, as root"
    if limit > SPARE_FILES:
        advice += f", or BATON_MAX_OPEN={limit - SPARE_FILES}"
    text = f"at most {limit} open files, and {max_open} clients need {needed}"
    return Finding("fail", "limits", text, advice)
