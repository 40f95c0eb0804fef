"""The measurements of Baton on Ray Serve; each takes the cluster and returns its figures."""

import asyncio
import json
import math
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.environment import ROOT
from bench.harness.client.client import Client
from bench.harness.client.endpoint import endpoint
from bench.harness.client.exchange import Exchange
from bench.harness.client.required import complete
from bench.measures import columns_ms
from bench.ray_nodes import RayNodes, agents_load
from bench.ray_streams import Load, Seen, answers, client
from bench.runs import bodies, prompts

_SIGKILL_S = 0.1
_MODEL = ROOT / "models" / "tiny"
_HELDOUT = ROOT / "models" / "heldout.jsonl"
NO_DRAFTS: dict[str, object] = {"BATON_SPECULATE": "off"}


def problems(cluster: RayNodes, number: int) -> dict[str, Any]:
    """Word problems over all nodes, and the same from one node without Ray."""
    held = [json.loads(line) for line in _HELDOUT.read_text().splitlines()][:number]
    questions = [problem["question"] for problem in held]
    by_ray = asyncio.run(answers(cluster.url, questions, concurrency=8))
    alone = asyncio.run(answers(cluster.nodes()[0][1], questions, concurrency=8))
    right = [
        seen.text.rpartition("#### ")[2].strip() == str(problem["final"])
        for seen, problem in zip(by_ray, held, strict=True)
    ]
    return {
        "requests": len(by_ray),
        "whole": sum(seen.whole for seen in by_ray),
        "right": sum(right),
        "same_text_as_without_ray": sum(
            a.text == b.text for a, b in zip(by_ray, alone, strict=True)
        ),
        "by_node": _by_node(by_ray),
    }


def latency(cluster: RayNodes, num_requests: int, num_tokens: int) -> dict[str, Any]:
    """Latency of the same requests to one node directly, and through Ray's proxy and the ingress,
    in turns, one at a time. Decode steps make no drafts, so each gives one token."""
    urls = {"direct": cluster.nodes()[0][1], "ray": cluster.url}
    requests = bodies(prompts(_MODEL, num_requests), num_tokens)

    async def run() -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {name: [] for name in urls}
        async with (
            Client(endpoint(urls["direct"])) as direct,
            Client(endpoint(urls["ray"])) as ray,
        ):
            for each in (direct, ray):
                await complete(each, **requests[0])
            for number, body in enumerate(requests):
                order = [("direct", direct), ("ray", ray)]
                for name, each in order if number % 2 else reversed(order):
                    found[name].append(await complete(each, **body))
        return found

    found = asyncio.run(run())
    figures: dict[str, Any] = {"requests": num_requests, "tokens_each": num_tokens}
    for name, records in found.items():
        tpot = [(record.e2e_s - record.ttft_s) / (num_tokens - 1) for record in records]
        figures[name] = {
            **columns_ms("ttft", [record.ttft_s for record in records], "p50 p99"),
            **columns_ms("itl", [gap for record in records for gap in record.itl_s], "p50 p99"),
            **columns_ms("tpot", tpot, "p50"),
        }
    figures["added_by_ray"] = {
        name: figures["ray"][name] - figures["direct"][name] for name in figures["ray"]
    }
    return figures


def node_killed(cluster: RayNodes, streams: int, num_tokens: int) -> dict[str, Any]:
    """Kill one of three nodes under load; later, add a node."""

    async def run() -> dict[str, Any]:
        async with client(cluster.url) as api:
            load = Load(api, num_tokens)
            load.start(streams)
            await asyncio.sleep(5)
            places = cluster.replicas()
            running = Counter(seen.node for seen in load.seen if seen.ended_at == math.inf)
            victim = max(places, key=lambda name: running[name])
            killed_at = perf_counter()
            await asyncio.to_thread(cluster.kill, places[victim])
            await asyncio.sleep(12)
            added_at = perf_counter()
            cluster.add()  # on the main thread, as Ray wants it: the streams here stand still
            joined_s = await asyncio.to_thread(cluster.until_ready, 3)
            await asyncio.sleep(3)
            await load.stop()
        return _killed(load.seen, victim, (killed_at, added_at)) | {
            "replacement_serves_after_s": joined_s,
            "served_by_the_replacement": sum(
                seen.node not in places for seen in load.seen if seen.began > added_at
            ),
        }

    return asyncio.run(run())


def _killed(seen: list[Seen], victim: str, two_nodes: tuple[float, float]) -> dict[str, Any]:
    """Figures of streams. ``two_nodes``: when the time with two nodes began and ended. ``new`` in a
    name: streams that began in that time."""
    killed_at, added_at = two_nodes
    before = [s for s in seen if s.began < killed_at < s.ended_at]
    on_victim = [s for s in before if s.node == victim]
    elsewhere = [s for s in before if s.node not in (victim, "")]
    new = [s for s in seen if killed_at + _SIGKILL_S <= s.began < added_at]
    failed = [s for s in seen if not s.whole]
    return {
        "streams": len(seen),
        "open_on_the_node": len(on_victim),
        "of_them_failed_with_an_error": sum(bool(s.error) for s in on_victim),
        "of_them_cut_off_silently": sum(not s.error and not s.finish for s in on_victim),
        "open_elsewhere": len(elsewhere),
        "of_them_whole": sum(s.whole for s in elsewhere),
        "new": len(new),
        "new_failed": sum(not s.whole for s in new),
        "new_first_token_within_s": max((s.first_at or s.ended_at) - s.began for s in new),
        "errors": sorted({s.error for s in failed}),
    }


def scaling(cluster: RayNodes, few: int, many: int, num_tokens: int) -> dict[str, Any]:
    """Grow from 1 node to as many as the load wants, and shrink to 1 again while long streams run
    on each node. No stream may be lost."""

    async def run() -> dict[str, Any]:
        async with client(cluster.url) as api:
            load = Load(api, num_tokens)
            load.start(few)
            await asyncio.sleep(5)
            began = perf_counter()
            load.start(many)
            await asyncio.to_thread(cluster.until_ready, 3)
            up_s = perf_counter() - began
            await asyncio.sleep(5)
            load.target = few
            long = [load.begin(10 * num_tokens) for _ in range(6)]
            began = perf_counter()
            await asyncio.to_thread(cluster.until_ready, 1, 180.0)
            down_s = perf_counter() - began
            await load.stop()
        return {
            "streams": len(load.seen),
            "lost": sum(not seen.whole for seen in load.seen),
            "errors": sorted({seen.error for seen in load.seen if seen.error}),
            "three_nodes_after_s": up_s,
            "one_node_after_s": down_s,
            "by_node": _by_node(load.seen),
            "long_streams_during_scale_down": _by_node(long),
        }

    return asyncio.run(run())


async def _records(url: str, number: int) -> dict[str, Any]:
    body = {"model": "tiny", "input": "Nina has 13 shells.", "max_output_tokens": 16}
    found: Counter[str] = Counter(asked=number)
    async with Client(endpoint(url)) as client:

        async def respond(headers: dict[str, str], **fields: str) -> Exchange:
            content = json.dumps({**body, **fields}).encode()
            return await client.request("POST", "/v1/responses", content, headers=headers)

        for each in range(number):
            name = f"record-{each}"
            first = await respond({"x-request-id": name, "x-session-id": name})
            found[f"on {first.headers['x-baton-node']}"] += 1
            made = json.loads(first.body)["id"]
            record = await client.get(f"/v1/requests/{made}")
            found["record_found"] += json.loads(record.body).get("http_id") == name
            second = await respond({}, previous_response_id=made)
            found["response_continued"] += second.status == 200
    return dict(found)


def records(cluster: RayNodes, number: int) -> dict[str, Any]:
    """Send requests to all nodes, then look up their records and continue their responses by id,
    without naming a node. Counts what was found."""
    return asyncio.run(_records(cluster.url, number))


def affinity(cluster: RayNodes, out: Path, load: list[str]) -> dict[str, Any]:
    """The share of prompt tokens that were cached. The cluster must be serving."""
    run = agents_load(cluster.url, out, *load)
    kept = ("ok", "problems", "agents", "turns", "failed", "hit_rate", "hit_rate_later")
    return {name: run.get(name) for name in kept}


def _by_node(seen: list[Seen]) -> dict[str, int]:
    return {name: sum(s.node == name for s in seen) for name in sorted({s.node for s in seen})}
