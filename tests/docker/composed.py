"""The compose file's stack in a real Docker engine, on the CPU with the bundled model."""

import asyncio
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx

from deploy.ports import claim_port
from tests.e2e.records import by_client
from tests.e2e.stack import assert_idle
from tests.e2e.waiting import eventually
from tests.lanes import ENGINE

ROOT = Path(__file__).resolve().parents[2]
CPU_ENV = ROOT / "deploy" / "cpu.env"
START_S = 60.0
SERVICES = ("redis", "coordinator", "prefill", "decode")
COMPOSE = "BATON_TEST_COMPOSE"
"""The command that runs the stack, where it is not to be the first that is found."""
COMPOSE_2 = "BATON_TEST_COMPOSE_2"
"""Compose 2, where it lies outside PATH; tests/docker/engine.sh says so."""
ENGINE_S = 400.0

_RECORDS = """
import json, os, redis
from coordinator.record import keys
url, password = os.environ["BATON_REDIS_URL"], os.environ["BATON_REDIS_PASSWORD"]
server = redis.Redis.from_url(url, password=password, decode_responses=True, socket_timeout=5)
found = [server.hgetall(key) for key in server.scan_iter(keys.REQUEST_PREFIX + "*", count=1000)]
open_ = [key for key in server.scan_iter(keys.open_requests("*"), count=1000)]
print(json.dumps({"records": found, "open": open_}))
"""
_KILL = "import os, signal, sys; os.kill(int(sys.argv[1]), signal.SIGKILL)"


@cache
def await_engine() -> None:
    """Wait until ``ENGINE`` is made, if one is, and take its settings into the environment."""
    if folder := os.environ.get(ENGINE):
        wait = ["flock", "--shared", "--timeout", str(ENGINE_S), f"{folder}.lock", "true"]
        subprocess.run(wait, timeout=ENGINE_S + 10.0, check=False)
        with suppress(FileNotFoundError):  # none could be made
            lines = Path(folder, "settings").read_text().splitlines()
            os.environ.update(line.split("=", 1) for line in lines)


def compose_commands() -> list[list[str]]:
    """What can read a compose file here."""
    await_engine()
    known = [["docker", "compose"], ["docker-compose"]]
    if COMPOSE in os.environ:
        known.insert(0, os.environ[COMPOSE].split())
    return [c for c in [*known, *compose_2()] if works(c)]


def compose_2() -> list[list[str]]:
    """The command of compose 2 that lies outside PATH; none, or one."""
    command = [os.environ.get(COMPOSE_2, "")]
    return [command] if works(command) else []


def works(command: list[str]) -> bool:
    return bool(shutil.which(command[0])) and _run([*command, "version"]).returncode == 0


def missing() -> str:
    """What keeps the stack from being run here; "" when nothing does."""
    await_engine()
    if not shutil.which("docker"):
        return "no docker command; see tests/docker/engine.sh"
    if not compose_commands():
        return "neither the compose plugin nor docker-compose"
    answer = _run(["docker", "info", "--format", "{{.ServerVersion}}"])
    if answer.returncode:
        return f"no Docker engine: {answer.stderr.strip().splitlines()[-1]}"
    return ""


def environment(**settings: str) -> dict[str, str]:
    """This process's environment, with what is shipped for a machine without a GPU and secrets. The
    base images are the compose file's, or those that this process was given."""
    shipped = re.findall(r"^([A-Z_]+)=(.*)$", CPU_ENV.read_text(), re.MULTILINE)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("BATON_", "PYTHON"))}
    return {
        **dict(shipped),
        **clean,
        # The builder whose layers tests/docker/engine.sh has made.
        "DOCKER_BUILDKIT": "0",
        "BATON_VERSION": "test",
        "REDIS_PASSWORD": "/#?@%\"'\\" + token_hex(16),
        "BATON_CHANNEL_SECRET": token_hex(32),
        **settings,
    }


_numbers = itertools.count(1)


def _lasting_port() -> int:
    """A free port that no process gets by chance: it must still be free whenever a container is
    replaced. Ports from 32768 on are given to whoever connects to something."""
    for port in random.sample(range(12_000, 32_000), 100):
        with suppress(ValueError):
            return claim_port("127.0.0.1", port)
    raise RuntimeError("of 100 ports none is free")


class Composed:
    """One project of the compose file. ``close`` it, whatever happens: nothing of it is left."""

    def __init__(self, command: list[str] | None = None, **settings: str) -> None:
        port = _lasting_port()
        self.url = f"http://127.0.0.1:{port}"
        self._compose = command or compose_commands()[0]
        project = f"batontest{os.getpid()}x{next(_numbers)}"
        self._environment = environment(
            PUBLISH=f"127.0.0.1:{port}", COMPOSE_PROJECT_NAME=project, **settings
        )

    def compose(self, *arguments: str, timeout_s: float = 180.0) -> str:
        return self._checked([*self._compose, "--env-file", ".env.example", *arguments], timeout_s)

    def refused(self, *arguments: str, **settings: str) -> str:
        """What a command says that must fail."""
        command = [*self._compose, "--env-file", ".env.example", *arguments]
        done = _run(command, env=self._environment | settings, timeout_s=60.0)
        assert done.returncode != 0, f"{command} did not fail: {done.stdout}{done.stderr}"
        return f"{done.stdout}{done.stderr}"

    def change(self, **settings: str) -> None:
        self._environment |= settings

    def docker(self, *arguments: str, timeout_s: float = 60.0) -> str:
        return self._checked(["docker", *arguments], timeout_s)

    def _checked(self, command: list[str], timeout_s: float) -> str:
        done = _run(command, env=self._environment, timeout_s=timeout_s)
        said = f"{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{said}"
        return done.stdout

    def build(self) -> int:
        """Both images. How many steps were found in the cache."""
        return self.compose("build", "--parallel", timeout_s=400.0).count("Using cache")

    def image(self, name: str) -> str:
        variant = "" if name == "coordinator" else "-cpu"
        return f"baton-{name}:{self._environment['BATON_VERSION']}{variant}"

    def setting(self, name: str) -> str:
        return self._environment[name]

    def engine(self) -> str:
        return self.docker("version", "--format", "{{.Server.Version}}").strip()

    def image_bytes(self, image: str) -> int:
        return int(self.docker("image", "inspect", "--format", "{{.Size}}", image))

    def inspect(self, thing: str, what: str) -> str:
        return self.docker("inspect", "--format", what, thing).strip()

    # ---- its containers

    def containers(self, service: str, *, ended: bool = False) -> list[str]:
        """Those that run, or all. By compose's labels: asking compose takes a second each time."""
        project = self.setting("COMPOSE_PROJECT_NAME")
        labels = {"project": project, "service": service}
        filters = [f"--filter=label=com.docker.compose.{k}={v}" for k, v in labels.items()]
        return self.docker("ps", "-q", "--no-trunc", f"--all={ended}".lower(), *filters).split()

    def said(self) -> str:
        """The state of each container, and the end of what it has said."""
        found = []
        for service in SERVICES:
            for container in self.containers(service, ended=True):
                state = self.inspect(container, "{{json .State}}")
                done = _run(["docker", "logs", "--tail", "25", container], env=self._environment)
                found.append(f"{service}: {state}\n{done.stdout}{done.stderr}")
        return "\n".join(found)

    def exit_codes(self) -> dict[str, list[str]]:
        code = "{{.State.ExitCode}}"
        return {
            service: [self.inspect(c, code) for c in self.containers(service, ended=True)]
            for service in SERVICES
        }

    def crash(self, container: str) -> None:
        """SIGKILL from the engine's host. ``docker kill`` would count as a wish to stop it, and
        the restart policy is part of what is tested."""
        pid = self.inspect(container, "{{.State.Pid}}")
        self.docker(
            "run", "--rm", "--pid", "host", "--user", "0", "--entrypoint", "python3",
            self.image("coordinator"), "-c", _KILL, pid,
        )  # fmt: skip

    def segments(self) -> set[str]:
        """What lies in the shared memory of the workers."""
        (worker,) = self.containers("prefill")
        return set(self.docker("exec", worker, "ls", "/dev/shm").split())

    # ---- what it says

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self._get("/status")).json()
        return found

    async def metrics(self) -> str:
        return (await self._get("/metrics")).text

    async def _get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, timeout=5.0) as http:
            try:
                answer = await http.get(path)
            except httpx.TransportError as error:
                raise AssertionError(f"{path}: {error!r}") from error
        assert answer.status_code == 200, answer.text
        return answer

    async def workers(self) -> set[str]:
        """The instances that the coordinator takes to be alive."""
        return {worker["instance"] for worker in (await self.status())["workers"]}

    async def ready(
        self,
        *,
        prefill: int = 1,
        decode: int = 1,
        colocated: int = 0,
        instead_of: frozenset[str] = frozenset(),
    ) -> None:
        """Wait until just so many workers serve, and Redis is there; with ``instead_of``, until
        one of these workers is no longer counted."""
        wanted = {"prefill": prefill, "decode": decode, "colocated": colocated}

        async def check() -> None:
            assert (await self._get("/ready")).json()["redis_connected"]
            workers = (await self.status())["workers"]
            roles = [worker["role"] for worker in workers]
            assert {role: roles.count(role) for role in wanted} == wanted, workers
            alive = {worker["instance"] for worker in workers}
            assert not instead_of or instead_of - alive, "a dead worker still counts"

        await eventually(check, f"{wanted} serve", START_S)

    async def idle(self) -> None:
        """Wait until nothing is open and everything is free."""

        async def check() -> None:
            assert_idle(await self.status())

        await eventually(check, "everything free")

    def records(self) -> dict[str, str]:
        """The state of every request that Redis knows, by its client's X-Request-Id."""
        (coordinator,) = self.containers("coordinator")
        told = json.loads(self.docker("exec", coordinator, "python3", "-c", _RECORDS))
        assert not told["open"], "a request is still listed as open"
        return {http_id: r["state"] for http_id, r in by_client(told["records"]).items()}

    async def up(self) -> float:
        """Seconds from ``up`` to the first answer of /ready that is yes."""
        begun = time.monotonic()
        await asyncio.to_thread(self.compose, "up", "-d")
        await self.ready()
        return time.monotonic() - begun

    async def stop(self) -> float:
        """Seconds that it took."""
        begun = time.monotonic()
        await asyncio.to_thread(self.compose, "stop")
        return time.monotonic() - begun

    def close(self) -> None:
        self.compose("kill")
        self.compose("down", "--volumes", "--remove-orphans")


def _run(
    command: list[str], *, env: dict[str, str] | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )
