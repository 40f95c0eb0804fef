"""A Ray cluster on this machine: a head with proxy and ingress, and nodes for one replica each.

Each Ray node is a raylet and its workers, as on a machine of its own. The application comes from
``deploy/ray/serve.yaml`` by ``serve run``, with the bundled model, small stacks and a free port.
"""

import asyncio
import copy
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster

from bench.commands import CommandFailed, baton_bench
from bench.environment import ROOT
from bench.harness.client.required import status
from deploy.ports import claim_port
from deploy.services import redis_command, redis_url

_OBJECTS_BYTES = 80 * 1024 * 1024
_SERVE_RUN_S = 180.0
_LOAD_S = 300.0
_POLL_S = 0.1
_PLACE = "baton_node"
STACK: Mapping[str, object] = {
    "BATON_DEVICE": "cpu",
    "BATON_ROLE": "colocated",
    "BATON_THREADS": 1,
    "BATON_SERVED_MODEL_NAME": "tiny",
}
# Ray's defaults are 10 s and more: too slow for a run of minutes. Its checks of nodes keep theirs.
_RAY = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "PYTHONPATH": str(ROOT),
}


class RayNodes:
    """A cluster with ``nodes`` nodes for replicas; it serves at ``url`` after ``deploy``."""

    def __init__(self, nodes: int, folder: Path) -> None:
        self._folder = folder
        self._port = claim_port("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._port}"
        head = {"num_cpus": 4, "include_dashboard": False, **self._common()}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=self._cluster.address, log_to_driver=False)
        self._deployed = False
        self._nodes_handle: Any = None
        for _ in range(nodes):
            self.add()

    def _common(self) -> dict[str, Any]:
        return {"object_store_memory": _OBJECTS_BYTES}

    def add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, resources={_PLACE: 1}, **self._common())

    def kill(self, node_id: str) -> None:
        """Send SIGKILL to all processes of a node, as if its machine were lost."""
        (node,) = [each for each in self._cluster.worker_nodes if each.node_id == node_id]
        raylet = node.all_processes["raylet"][0].process.pid
        children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
        for pid in (raylet, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def deploy(self, settings: Mapping[str, object], node: Mapping[str, Any]) -> None:
        """Start the application, in place of a running one. ``settings``: of each stack;
        ``node``: options of the deployment Node."""
        self._forget()
        if self._deployed:
            serve.delete("baton")
        self._deployed = True
        described = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text())
        described["proxy_location"] = "HeadOnly"
        described["http_options"] = {"host": "127.0.0.1", "port": self._port}
        (app,) = described["applications"]
        app["args"] = {"settings": {**STACK, **settings}}
        options = copy.deepcopy(dict(node))
        actor = {"num_cpus": 0, "resources": {_PLACE: 1}}
        app["deployments"] = [
            {"name": "Node", "ray_actor_options": actor, "max_replicas_per_node": 1, **options},
            {"name": "Ingress", "num_replicas": 1, "ray_actor_options": {"num_cpus": 1}},
        ]
        path = self._folder / "serve.yaml"
        path.write_text(yaml.safe_dump(described))
        self._serve("run", "--non-blocking", "--address", self._cluster.address, str(path))

    def _serve(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("serve")), *arguments]
        subprocess.run(command, check=True, timeout=_SERVE_RUN_S, env=os.environ, cwd=ROOT)

    def replicas(self) -> dict[str, str]:
        """The Ray node of each replica of ``Node`` that is alive, by the replica's name."""
        found = {}
        for actor in ray._private.state.actors().values():
            name = actor["Name"] or ""
            if actor["State"] == "ALIVE" and name.startswith("SERVE_REPLICA::baton#Node#"):
                found[name.rpartition("#")[2]] = actor["Address"]["NodeID"]
        return found

    def nodes(self) -> list[tuple[str, str]]:
        """Name and URL of each replica that takes requests, by the ingress."""
        asked = self._handle().broadcast("record_replica_metadata").results(timeout_s=10)
        return sorted((found["name"], found["url"]) for found in asked)

    def _handle(self) -> Any:
        if self._nodes_handle is None:
            self._nodes_handle = serve.get_deployment_handle("Node", "baton")
        return self._nodes_handle

    def _forget(self) -> None:
        """Shut the handle down: one that outlives its cluster starts another, by a thread of its
        own."""
        if self._nodes_handle is not None:
            self._nodes_handle.shutdown()
        self._nodes_handle = None

    def until_ready(self, number: int, deadline_s: float = 240.0) -> float:
        """Wait until ``number`` replicas take requests; returns the seconds that it took."""
        began = time.monotonic()
        while time.monotonic() - began < deadline_s:
            with suppress(Exception):
                if len(self.nodes()) == number and self._answers():
                    return time.monotonic() - began
            time.sleep(_POLL_S)
        raise TimeoutError(f"there are not {number} nodes after {deadline_s:g} s")

    def _answers(self) -> bool:
        return asyncio.run(status(self.url, "/ready", within_s=5)) == 200

    def close(self) -> None:
        """Kill the cluster. Replicas have no time to stop their stacks."""
        self._forget()
        ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def ray_nodes(number: int, haproxy: bool) -> Iterator[RayNodes]:
    """A cluster while this is entered. ``haproxy``: HAProxy instead of Ray's own proxies."""
    os.environ.update({**_RAY, "RAY_SERVE_ENABLE_HA_PROXY": str(int(haproxy))})
    with tempfile.TemporaryDirectory(prefix="baton-ray-") as folder:
        cluster = RayNodes(number, Path(folder))
        try:
            yield cluster
        finally:
            cluster.close()


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a Redis beside the nodes."""
    with tempfile.TemporaryDirectory(prefix="baton-ray-") as folder:
        process = subprocess.Popen(redis_command(Path(folder)), stdout=subprocess.DEVNULL)
        try:
            yield redis_url(Path(folder))
        finally:
            process.kill()
            process.wait()


def agents_load(url: str, out: Path, *options: str) -> dict[str, Any]:
    """Run ``baton bench load --agents``; returns its ``results.run``. Raises CommandFailed."""
    measured = baton_bench("load", *options, url=url, out=out, within_s=_LOAD_S)
    if measured.exit_code:
        raise CommandFailed(f"baton bench load: exit code {measured.exit_code}: {measured.said}")
    found = measured.document
    return {"ok": found["ok"], "problems": found["problems"], **found["results"]["run"]}
