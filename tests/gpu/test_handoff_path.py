"""The handoff's path on real GPUs: plain memory only, every pair, exporters that are killed."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from deploy.pair_checks import pairs
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.errors import PeerGone
from transport.wire.messages import PeerJoined
from worker.pairtest import FULL_SIZE, POOLS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def exporter():
    """A process on GPU 0 that exports a region with a pattern."""
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.pairtest", "export", "cuda:0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def announced(exporter: subprocess.Popen) -> PeerJoined:
    return msgspec.json.decode(exporter.stdout.readline(), type=PeerJoined)


@pytest.fixture
def stream():
    """A copy stream on the last GPU, and the cache it writes."""
    from transport.copy.cuda import CudaMemory
    from transport.copy.cuda_pull import CudaCopyStream

    torch.cuda.set_device(torch.cuda.device_count() - 1)
    buffer = CudaMemory().allocate(Region.of(FULL_SIZE, POOLS).size_bytes)
    own = CacheTensors.over(buffer, FULL_SIZE, POOLS)
    stream = CudaCopyStream(own, after_steps=False)
    yield stream, own
    stream.close()
    torch.cuda.set_device(0)


def free_bytes() -> int:
    """Of GPU 0, which may be this process's own: without what torch keeps for later."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(0)[0]


def test_every_pair_of_gpus_carries_every_byte() -> None:
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    found = pairs(devices, {**os.environ, "PYTHONPATH": PYTHON_PATH})
    assert [finding.line() for finding in found if finding.level == "fail"] == []
    assert len(found) == max(1, len(devices) * (len(devices) - 1))


def test_expandable_segments_cannot_be_exported_and_the_error_says_so() -> None:
    code = (
        "import torch\n"
        "from transport.copy.cuda import export_handle\n"
        "memory = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n"
        "try:\n"
        "    export_handle(memory.data_ptr())\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTHONPATH": PYTHON_PATH}
    said = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **settings}, capture_output=True,
        text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert "cannot be exported through CUDA IPC" in said
    assert "plain cudaMalloc" in said


def test_the_region_itself_is_plain_memory_whatever_torch_uses() -> None:
    code = (
        "from transport.copy.cuda import CudaMemory\n"
        "memory = CudaMemory()\n"
        "memory.allocate(1 << 20)\n"
        "print(len(memory.handle))\n"
    )
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTHONPATH": PYTHON_PATH}
    said = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **settings}, capture_output=True,
        text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert said.strip() == "128"


def test_a_killed_exporters_bytes_arrive_and_its_gpu_is_free_afterwards(exporter, stream) -> None:
    from transport.copy.selftest import probe_peer

    copies, own = stream
    peer = announced(exporter)
    free_before = free_bytes()
    copies.open(peer.instance, peer.memory)
    exporter.kill()
    exporter.wait()
    assert probe_peer(copies, own, peer.instance).problem == ""
    copies.close_peer(peer.instance)
    assert free_bytes() - free_before >= peer.memory.size_bytes
    with pytest.raises(PeerGone, match="Its process has ended"):
        copies.open(peer.instance, peer.memory)


def test_a_closed_peer_stays_mapped_until_its_last_pull_is_done(exporter, stream) -> None:
    from transport.copy.cuda_pull import CudaPull
    from transport.copy.pull import Wanted
    from transport.copy.region import PROBE
    from transport.copy.selftest import EPOCH
    from transport.wire.messages import Offer

    copies, _ = stream
    peer = announced(exporter)
    copies.open(peer.instance, peer.memory)
    pages = tuple(range(PROBE.num_pages))
    offer = Offer(peer.instance, pages, 0, EPOCH, 0)
    pulls = copies.pull([Wanted(offer, pages, 0, in_probe=True)] * 50)
    copies.close_peer(peer.instance)
    exporter.kill()
    assert all(pull.wait(10.0) for pull in pulls)
    for pull in pulls:
        assert isinstance(pull, CudaPull)
        assert pull.result().copy_s > 0
