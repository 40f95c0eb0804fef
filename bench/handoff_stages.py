"""``python -m bench.handoff_stages``: p50, p90 and p99 of the time of each stage of handoffs.

It reads the records of the last hour's requests in Redis, and prints JSON. The stages are explained
in coordinator/record/record.py.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import redis
import typer
from msgspec import structs

from bench.measures import columns_ms, percentile
from bench.recording import Recording
from coordinator.record import keys
from coordinator.record.record import HANDOFF_STAGES, RequestRecord, stage_seconds
from coordinator.record.settings import PASSWORD
from transport.wire.errors import MalformedMessage
from transport.wire.secret_setting import secret_setting

TIMEOUT_S = 10.0


def of_records(records: Iterable[RequestRecord]) -> dict[str, Any]:
    """Percentiles over the requests that were handed off: of each stage, and of the speed of
    copies in 1e9 bytes per second."""
    handed = [(r, found) for r in records if (found := stage_seconds(structs.asdict(r)))]
    stages = {
        stage: columns_ms("", [found[stage] for _, found in handed], "p50 p90 p99")
        for stage in HANDOFF_STAGES
    }
    speeds = [r.handoff_bytes / r.copy_s / 1e9 for r, _ in handed if r.copy_s]
    return {
        "handoffs": len(handed),
        "stages": stages if handed else {},
        "bytes_p50": percentile([r.handoff_bytes for r, _ in handed], 0.5) if handed else None,
        "gb_per_s_p50": percentile(speeds, 0.5) if speeds else None,
        "gb_per_s_p1": percentile(speeds, 0.01) if speeds else None,
    }


def read_records(redis_url: str, password: str = "") -> list[RequestRecord]:
    """The readable records of requests in a Redis. Raises redis.RedisError."""
    server = redis.Redis.from_url(
        redis_url, password=password or None, decode_responses=True, socket_timeout=TIMEOUT_S
    )
    with server:
        found = list(server.scan_iter(keys.REQUEST_PREFIX + "*", count=1000))
        with server.pipeline(transaction=False) as pipeline:
            for key in found:
                pipeline.hgetall(key)
            hashes = pipeline.execute()
    records = []
    for fields in hashes:
        try:
            records.append(RequestRecord.from_fields(fields))
        except MalformedMessage:  # it expired meanwhile, or another version wrote it
            continue
    return records


def main(
    redis_url: Annotated[
        str, typer.Option(envvar="BATON_REDIS_URL", help="The coordinator's Redis.")
    ],
    min_prompt: Annotated[int, typer.Option(help="Only prompts of at least this many tokens.")] = 0,
    max_prompt: Annotated[int, typer.Option(help="And of at most this many.")] = 1 << 30,
    out: Annotated[Path | None, typer.Option(help="Also a result file.")] = None,
) -> None:
    """Print the percentiles of every stage. Exit code: 0; 1 when there was no handoff; 2 when
    nothing could be read."""
    try:
        every = read_records(redis_url, secret_setting(os.environ, PASSWORD))
    except (redis.RedisError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    found = of_records(r for r in every if min_prompt <= r.num_prompt <= max_prompt)
    typer.echo(json.dumps(found, indent=1))
    if out is not None:
        prompts = {"min_prompt": min_prompt, "max_prompt": max_prompt}
        run = Recording("bench.handoff_stages", out, prompts)
        run.results |= found
        run.save(stopped=None)
    raise typer.Exit(0 if found["handoffs"] else 1)


if __name__ == "__main__":
    typer.run(main)
