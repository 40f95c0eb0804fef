"""``python -m worker.pairtest``: the self-test of a pair without workers, a process for each end.

    gpus                print the GPUs that CUDA sees here, and which can access which, as JSON;
    export [DEVICE]     export a region with a pattern, print its export as a line of JSON, and
                        stay until the input ends;
    pull [DEVICE]       read such lines until the input ends, test each, and print the results.

DEVICE is cpu or cuda:N. ``baton doctor`` runs these for every pair of GPUs, or for two processes
of a machine without one.
"""

import os
import sys
from secrets import token_hex

import msgspec
import torch
import typer

from engine.gpu import visible_gpus
from engine.kernels.attention import cudnn_attention
from transport.copy.memory import copy_stream, own_memory
from transport.copy.region import Region
from transport.copy.selftest import probe_peer, write_pattern
from transport.copy.tensors import CacheTensors
from transport.wire.errors import BatonError
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import PeerJoined, PeerTested

FULL_SIZE = CacheLayout(
    kv_dtype="bfloat16", page_size=64, num_attention_layers=10, num_kv_heads=2, head_dim=256,
    num_deltanet_layers=30, conv_channels=8192, conv_state_len=3, num_v_heads=32, k_dim=128,
    v_dim=128,
)  # fmt: skip
"""The layout of Qwen3.5-35B-A3B: 1.25 MiB per page, 61.4 MiB per state slot."""
SMALL = CacheLayout(
    kv_dtype="float32", page_size=64, num_attention_layers=2, num_kv_heads=2, head_dim=64,
    num_deltanet_layers=6, conv_channels=512, conv_state_len=3, num_v_heads=8, k_dim=32, v_dim=32,
)  # fmt: skip
"""A layout for the CPU, where shared memory may be small: 2.9 MiB to copy."""
POOLS = PoolSize(num_pages=1, num_state_slots=1)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class GpuReport(msgspec.Struct):
    """The GPUs of this machine. ``peers``[i][j]: True if GPU i can access the memory of GPU j.
    ``no_cudnn``: why prompts behind deep contexts are computed without cuDNN; "" if they are not.
    """

    uuids: list[str]
    names: list[str]
    capabilities: list[tuple[int, int]]
    peers: list[list[bool]]
    no_cudnn: str = ""


@app.command()
def gpus() -> None:
    found = visible_gpus()
    cuda = torch.cuda
    report = GpuReport(
        [gpu.uuid for gpu in found],
        [cuda.get_device_name(gpu.index) for gpu in found],
        [cuda.get_device_capability(gpu.index) for gpu in found],
        [
            [i == j or cuda.can_device_access_peer(i, j) for j in range(len(found))]
            for i in range(len(found))
        ],
        cudnn_attention.unsupported(torch.bfloat16, cudnn_attention.HEAD_DIM),
    )
    _print_line(report)


@app.command()
def export(device: str) -> None:
    instance = f"test-{token_hex(4)}"
    layout = _enter(device)
    memory = own_memory(device.partition(":")[0], instance)
    try:
        size_bytes = Region.of(layout, POOLS).size_bytes
        cache = CacheTensors.over(memory.allocate(size_bytes), layout, POOLS)
        write_pattern(cache, instance)
        exported = MemoryExport(memory.kind, memory.handle, size_bytes, layout, POOLS)
        _print_line(PeerJoined(instance, exported))
        sys.stdin.read()
    finally:
        memory.close()


@app.command()
def pull(device: str) -> None:
    layout = _enter(device)
    kind = device.partition(":")[0]
    memory = own_memory(kind, f"test-{token_hex(4)}")
    try:
        buffer = memory.allocate(Region.of(layout, POOLS).size_bytes)
        own = CacheTensors.over(buffer, layout, POOLS)
        stream = copy_stream(kind, own, poisoned=False)
        decoder = msgspec.json.Decoder(PeerJoined)
        for line in sys.stdin:
            peer = decoder.decode(line)
            try:
                stream.open(peer.instance, peer.memory)
            except BatonError as error:
                _print_line(PeerTested(peer.instance, problem=str(error)))
                continue
            test = probe_peer(stream, own, peer.instance)
            stream.close_peer(peer.instance)
            _print_line(PeerTested(peer.instance, test.num_bytes, test.seconds, test.problem))
        stream.close()
    finally:
        memory.close()


def _enter(device: str) -> CacheLayout:
    if device == "cpu":
        return SMALL
    torch.cuda.set_device(device)
    return FULL_SIZE


def _print_line(what: msgspec.Struct) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        app()
    except (ValueError, OSError, BatonError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
