"""A pod of deploy/kubernetes in a Docker engine: its containers, started from the rendered manifest
as a kubelet would start them, without a cluster.

One container holds the namespaces that Kubernetes' pause container would hold: network, and
processes where the pod shares them. Volumes are Docker's. Probes, restarts and resources are not
applied.
"""

import itertools
import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from deploy.ports import claim_port
from tests.e2e.waiting import eventually
from tests.kubernetes.rendered import containers, environment, pod

START_S = 60.0
_numbers = itertools.count(1)


class Pod:
    """The pod of the set ``name``. ``images`` are those that the engine has, by the manifest's;
    ``secrets`` are the keys of the Secret; ``model`` is the folder at /model. ``close`` it."""

    def __init__(
        self, name: str, *, images: dict[str, str], secrets: dict[str, str], model: Path
    ) -> None:
        self._name, self._images, self._secrets, self._model = name, images, secrets, model
        self._pod = f"batonpod{os.getpid()}x{next(_numbers)}"
        self._port = claim_port("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._port}"
        self._started: list[str] = []

    def start(self) -> None:
        """Containers in the pod's order; one that is no sidecar must end well before the next."""
        self._hold_namespaces()
        for volume in self._own_volumes():
            self._make(volume)
        for name, spec in containers(self._name).items():
            is_first = spec in pod(self._name)["initContainers"]
            self._run(name, spec)
            if is_first and spec.get("restartPolicy") != "Always":
                code = _docker("wait", self._called(name)).strip()
                assert code == "0", _docker("logs", self._called(name))

    async def ready(self) -> None:
        """Wait until the readiness probe passes."""
        (coordinator,) = pod(self._name)["containers"]
        path = coordinator["readinessProbe"]["httpGet"]["path"]

        async def check() -> None:
            async with httpx.AsyncClient(base_url=self.url, timeout=5.0) as http:
                with suppress(httpx.TransportError):
                    assert (await http.get(path)).status_code == 200
                    return
            raise AssertionError("no connection")

        await eventually(check, f"{path} says yes", START_S)

    def stop(self) -> float:
        """SIGTERM in the order in which Kubernetes sends it: the containers, then the sidecars, the
        last one first, each when the one before has ended. Seconds that it took."""
        begun = time.monotonic()
        grace_s = str(pod(self._name)["terminationGracePeriodSeconds"])
        for container in reversed(self._started):
            _docker("stop", "-t", grace_s, container, timeout_s=float(grace_s) + 30.0)
        return time.monotonic() - begun

    def exit_codes(self) -> dict[str, int]:
        states = json.loads(_docker("inspect", *self._started))
        return {
            state["Name"].removeprefix(f"/{self._pod}-"): state["State"]["ExitCode"]
            for state in states
        }

    def logs(self, name: str) -> str:
        return _docker("logs", self._called(name))

    def close(self) -> None:
        for container in [*reversed(self._started), self._pod]:
            _docker("rm", "--force", "--volumes", container, check=False)
        for volume in self._own_volumes():
            _docker("volume", "rm", "--force", self._called(volume["name"]), check=False)

    # ---- as a kubelet does it

    def _hold_namespaces(self) -> None:
        (coordinator,) = pod(self._name)["containers"]
        (http,) = coordinator["ports"]
        _docker(
            "run", "--detach", "--init", "--name", self._pod,
            "--publish", f"127.0.0.1:{self._port}:{http['containerPort']}",
            "--entrypoint", "sleep", self._images[coordinator["image"]], "infinity",
        )  # fmt: skip

    def _own_volumes(self) -> list[dict[str, Any]]:
        """All but the model's."""
        return [v for v in pod(self._name)["volumes"] if "emptyDir" in v]

    def _make(self, volume: dict[str, Any]) -> None:
        """Of mode 0777, as a kubelet makes an emptyDir."""
        size = volume["emptyDir"].get("sizeLimit", "1Gi").removesuffix("Gi")
        options = ("type=tmpfs", "device=tmpfs", f"o=size={size}g,mode=0777")
        _docker("volume", "create", *(f"--opt={o}" for o in options), self._called(volume["name"]))

    def _run(self, name: str, spec: dict[str, Any]) -> None:
        user = pod(self._name)["securityContext"]
        command = spec.get("command", [])
        shares = pod(self._name).get("shareProcessNamespace", False)
        arguments = [
            "run", "--detach", "--name", self._called(name),
            "--network", f"container:{self._pod}",
            *(["--pid", f"container:{self._pod}"] if shares else []),
            "--user", f"{user['runAsUser']}:{user['runAsGroup']}",
            *(f"--env={key}={value}" for key, value in self._environment(name).items()),
            *(f"--mount={self._mount(m)}" for m in spec["volumeMounts"]),
            *self._confinement(spec["securityContext"]),
            *(["--entrypoint", command[0]] if command else []),
            self._images[spec["image"]], *command[1:], *spec.get("args", []),
        ]  # fmt: skip
        _docker(*arguments)
        self._started.append(self._called(name))

    def _environment(self, name: str) -> dict[str, str]:
        found = environment(self._name, name)
        given = {f"secret:{key}": value for key, value in self._secrets.items()}
        filled = {key: given.get(value, value) for key, value in found.items()}
        return {k: v for k, v in filled.items() if not v.startswith("secret:")}  # an optional one

    def _mount(self, mount: dict[str, Any]) -> str:
        target = f"target={mount['mountPath']}"
        if mount["name"] == "model":
            assert mount["readOnly"]
            return f"type=bind,source={self._model},{target},readonly"
        return f"type=volume,source={self._called(mount['name'])},{target},volume-nocopy"

    @staticmethod
    def _confinement(security: dict[str, Any]) -> list[str]:
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        dropped = [f"--cap-drop={name}" for name in security["capabilities"]["drop"]]
        return ["--read-only", "--security-opt=no-new-privileges:true", *dropped]

    def _called(self, name: str) -> str:
        return f"{self._pod}-{name}"


def _docker(*arguments: str, timeout_s: float = 60.0, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    said = f"{done.stdout}{done.stderr}"
    assert done.returncode == 0 or not check, f"docker {' '.join(arguments)}: {said}"
    return said
