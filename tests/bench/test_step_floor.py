"""Floors of decode steps, by hand for a dense model and one with experts."""

from pathlib import Path

import pytest

from bench.step_floor import floor_ms, step_bytes
from engine.model.registry import read_config

MODELS = Path(__file__).parents[2] / "bench/models"


def test_a_dense_model_reads_its_weights_and_pages() -> None:
    config = read_config(MODELS / "llama-3.1-8b")
    layer = 4096 * (6144 + 4096 + 3 * 14336) * 2 + 2 * 4096 * 4
    weights = 32 * layer + 4096 * 128256 * 2 + 4096 * 4
    pages = 64 * 1500 * 32 * 2 * 8 * 128 * 2
    assert step_bytes(config, 64, 1500) == weights + pages
    assert floor_ms(config, 64, 1500, "NVIDIA H100 80GB HBM3") == pytest.approx(9.2, abs=0.1)
    assert floor_ms(config, 64, 1500, "NVIDIA L4") is None


def test_experts_that_no_row_chooses_are_not_read() -> None:
    config = read_config(MODELS / "qwen3-30b-a3b")
    one, many = step_bytes(config, 1, 0), step_bytes(config, 10_000, 0)
    assert many - one == pytest.approx(48 * 120 * 3 * 2048 * 768 * 2)
