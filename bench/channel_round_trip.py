"""What encryption costs the token path: the channel's round trip on this machine, with and without.

    python -m bench.channel_round_trip [--rounds 2000]

A worker sends the tokens of one decode step (a message of as many rows), the coordinator answers
with one small message; open and with keys in turns, over TCP on loopback and over a Unix socket.
One line each: rows, median and 99th percentile of the round trip in µs, CPU time of both ends.
"""

import argparse
import asyncio
import tempfile
import threading
import time

import uvloop

from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.channel_keys import ChannelKeys, channel_keys
from transport.wire.messages import Alive, TokenOut, Tokens

ROWS = (1, 64, 256)
_TIMEOUT_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2000)
    rounds: int = parser.parse_args().rounds
    keys = channel_keys("no secret at all, only a measurement")
    with tempfile.TemporaryDirectory() as folder:
        for endpoint in ("tcp://127.0.0.1:*", f"ipc://{folder}/c.sock"):
            for rows in ROWS:
                for name, used in (("open", None), ("keys", keys)) * 2:
                    took_s, cpu_s = uvloop.run(measure(endpoint, used, rows, rounds))
                    took_s.sort()
                    print(
                        f"{endpoint[:3]} {name}  {rows:3d} rows"
                        f"  p50 {took_s[rounds // 2] * 1e6:4.0f} µs"
                        f"  p99 {took_s[rounds * 99 // 100] * 1e6:4.0f} µs"
                        f"  CPU {cpu_s / rounds * 1e6:4.0f} µs",
                        flush=True,
                    )


async def measure(
    endpoint: str, keys: ChannelKeys | None, rows: int, rounds: int
) -> tuple[list[float], float]:
    """Seconds of each round trip, and seconds of CPU time in all."""
    coordinator = CoordinatorChannel(endpoint, keys=keys)
    worker = WorkerChannel(coordinator.endpoint, "worker", keys=keys)
    step = Tokens(tuple(TokenOut(f"chatcmpl-{row:032x}", 1, row, 42) for row in range(rows)))
    took_s: list[float] = []

    def ask() -> None:
        for _ in range(rounds):
            began = time.perf_counter()
            worker.send(step)
            assert worker.receive(_TIMEOUT_S), "no answer"
            took_s.append(time.perf_counter() - began)

    asking = threading.Thread(target=ask)
    cpu_s = time.process_time()
    asking.start()
    try:
        for _ in range(rounds):
            async with asyncio.timeout(_TIMEOUT_S):
                instance, _ = await coordinator.receive()
            coordinator.send(instance, Alive("coordinator"))
        await asyncio.to_thread(asking.join)
    finally:
        cpu_s = time.process_time() - cpu_s
        worker.close()
        coordinator.close()
    return took_s, cpu_s


if __name__ == "__main__":
    main()
