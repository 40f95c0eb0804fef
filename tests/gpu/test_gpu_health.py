"""What a real GPU says of itself, from NVML to the coordinator's metrics."""

import asyncio
import re

import httpx
import pytest

from tests.e2e.served import TINY
from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


async def test_a_workers_gpu_is_told_with_values_that_can_be() -> None:
    stack = Stack(
        TINY, "--device", "cuda", "--role", "colocated", "--workers", "1",
        dtype="float32", num_pages=2048,
    )  # fmt: skip
    try:
        stack.start()

        async def told() -> dict[str, float]:
            async with httpx.AsyncClient(timeout=5.0) as http:
                text = (await http.get(f"{stack.url}/metrics")).text
            labels = r'\{gpu="GPU-[0-9a-f-]+",instance="colocated-[0-9a-f]+",role="colocated"\}'
            found = dict(re.findall(rf"^(baton_gpu_\w+){labels} (\S+)$", text, re.MULTILINE))
            assert found, "nothing told yet"
            return {name: float(value) for name, value in found.items()}

        gpu = await eventually(told, "the first reading")
        assert 10 < gpu["baton_gpu_temperature_celsius"] < 100
        assert 10 < gpu["baton_gpu_power_watts"] < 2000
        assert 0 <= gpu["baton_gpu_utilisation_ratio"] <= 1
        assert 0 < gpu["baton_gpu_memory_used_bytes"] <= gpu["baton_gpu_memory_bytes"]
        assert 1e8 < gpu["baton_gpu_sm_clock_hertz"] < 4e9
        (worker,) = (await stack.status())["workers"]
        assert 10 < worker["gpu_temperature_c"] < 100
        assert await asyncio.to_thread(stack.stop) == 0
    finally:
        stack.close()
