"""``python -m bench.ray_cluster``: Baton on a Ray cluster of three nodes, on this machine's CPU.

    python -m bench.ray_cluster --only problems,latency

A real local cluster (ray_nodes.py) with the bundled model and one colocated worker per node. It
needs the extra ``dev`` and some 6 GB of memory, and takes five minutes. The parts of the
result file:

- ``problems``: how many of 200 held-out word problems were answered right, by openai-python
- ``latency``: time to first token and between tokens, through Ray and directly
- ``killed``: what clients see when a node dies, and when its replacement serves
- ``scaling``: streams lost when the cluster grows from 1 node to 3 and shrinks back to 1
- ``records``: whether requests' records and stored responses are found, with a Redis for each node
  and with one for all
- ``affinity``: the prefix cache's hit rate of conversations on three nodes, and on one node with
  three times the memory

Exit code: 0 all targets met, 1 one was missed; the file names it.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import ray_runs, result_file
from bench.environment import ROOT, describe
from bench.ray_nodes import RayNodes, ray_nodes, redis_server

PARTS = ("problems", "latency", "killed", "scaling", "records", "affinity")
_SCALED = {
    "autoscaling_config": {
        "min_replicas": 1,
        "max_replicas": 3,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
        "look_back_period_s": 2,
        "metrics_interval_s": 1,
        "policy": {
            "policy_function": "deploy.ray.scaling:NodesForLoad",
            "policy_kwargs": {"running_per_node": 8, "queued_per_node": 8},
        },
    },
}
_AGENTS = [
    "--agents", "15", "--turns", "6", "--rate", "3", "--agents-shared-prefix", "256",
    "--agents-turn-len", "128", "--output-len", "16", "--seed", "1", "--warm-ups", "1",
]  # fmt: skip
# At their end, 15 conversations keep some 300 pages and 100 states.
_PAGES, _STATES = 192, 64
_MOST_ADDED_HIT_RATE = 0.1


def main(
    only: Annotated[str, typer.Option(help="Parts, by commas.")] = ",".join(PARTS),
    haproxy: Annotated[bool, typer.Option(help="Ray's proxies are HAProxy.")] = False,
    out: Annotated[Path, typer.Option(help="Where the result goes.")] = ROOT
    / "bench/results/cpu-ray-cluster.json",
) -> None:
    parts = only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise typer.BadParameter(f"{unknown[0]} is not one of {', '.join(PARTS)}")
    results: dict[str, Any] = {}
    with ray_nodes(3, haproxy) as cluster:
        for part in parts:
            results[part] = globals()[f"_{part}"](cluster)
            typer.echo(f"{part}: {result_file.one_line(results[part])}")
    missed = [text for part in parts for text in _missed(part, results[part])]
    found = result_file.document(
        "ray-cluster",
        environment=describe(sys.argv[1:], "bench.ray_cluster"),
        settings={"agents": _AGENTS, "pages": _PAGES, "states": _STATES, "haproxy": haproxy},
        results=results,
        problems=missed,
    )
    result_file.save(out, found)
    raise typer.Exit(int(bool(missed)))


def _problems(cluster: RayNodes) -> dict[str, Any]:
    _three(cluster)
    return ray_runs.problems(cluster, 200)


def _latency(cluster: RayNodes) -> dict[str, Any]:
    _three(cluster, ray_runs.NO_DRAFTS)
    return ray_runs.latency(cluster, num_requests=100, num_tokens=32)


def _killed(cluster: RayNodes) -> dict[str, Any]:
    _three(cluster)
    return ray_runs.node_killed(cluster, streams=12, num_tokens=150)


def _scaling(cluster: RayNodes) -> dict[str, Any]:
    cluster.deploy({}, _SCALED)
    cluster.until_ready(1)
    return ray_runs.scaling(cluster, few=2, many=22, num_tokens=100)


def _records(cluster: RayNodes) -> dict[str, Any]:
    _three(cluster)
    found = {"a_redis_for_each": ray_runs.records(cluster, 12)}
    with redis_server() as url:
        _three(cluster, {"BATON_REDIS_URL": url})
        found["one_for_all"] = ray_runs.records(cluster, 12)
    return found


def _affinity(cluster: RayNodes) -> dict[str, Any]:
    found = {}
    for name, nodes in (("three", 3), ("one", 1)):
        memory = {
            "BATON_NUM_PAGES": _PAGES * 3 // nodes,
            "BATON_NUM_STATE_SLOTS": _STATES * 3 // nodes,
        }
        cluster.deploy(memory, {"num_replicas": nodes})
        cluster.until_ready(nodes)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = ray_runs.affinity(cluster, Path(folder) / "load.json", _AGENTS)
    return found


def _three(cluster: RayNodes, settings: dict[str, object] | None = None) -> None:
    cluster.deploy(settings or {}, {"num_replicas": 3})
    cluster.until_ready(3)


def _missed(part: str, found: dict[str, Any]) -> list[str]:
    """The targets of a part that are not met."""
    checks: dict[str, Callable[[], dict[str, bool]]] = {
        "problems": lambda: {
            "all are answered": found["whole"] == found["requests"],
            "all as without Ray": found["same_text_as_without_ray"] == found["requests"],
            "90 % are right": found["right"] >= 0.9 * found["requests"],
        },
        "latency": lambda: {},
        "killed": lambda: {
            "streams elsewhere are whole": found["of_them_whole"] == found["open_elsewhere"],
            "none is cut off silently": found["of_them_cut_off_silently"] == 0,
            "new ones are served": found["new_failed"] == 0,
            "within 5 s": found["new_first_token_within_s"] < 5,
            "the replacement serves": found["served_by_the_replacement"] > 0,
        },
        "scaling": lambda: {"none is lost": found["lost"] == 0},
        "records": lambda: {
            f"{each}, {name}": counts[name] == counts["asked"]
            for each, counts in found.items()
            for name in ("record_found", "response_continued")
        },
        "affinity": lambda: {
            "three nodes' hit rate is within 10 % of one's": found["three"]["hit_rate_later"]
            >= (1 - _MOST_ADDED_HIT_RATE) * found["one"]["hit_rate_later"],
        },
    }
    return [f"{part}: {text}: no" for text, met in checks[part]().items() if not met]


if __name__ == "__main__":
    typer.run(main)
