"""Floors of decode steps, by hand for a dense model and one with experts."""

from dataclasses import replace
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


def test_experts_in_fewer_bits_are_fewer_bytes() -> None:
    config = read_config(MODELS / "qwen3-30b-a3b")
    for quantised, itemsize in ((config.quantised(), 1), (config.rounded().packing(), 9 / 16)):
        one, many = step_bytes(quantised, 1, 0), step_bytes(quantised, 10_000, 0)
        assert many - one == pytest.approx(48 * 120 * 3 * 2048 * 768 * itemsize, rel=1e-3)
        others = step_bytes(config, 10_000, 0) - 48 * 128 * 3 * 2048 * 768 * 2
        assert many - 48 * 128 * 3 * 2048 * 768 * itemsize < others


def test_tokens_before_a_window_are_not_read() -> None:
    config = read_config(MODELS / "llama-3.1-8b")
    first = replace(config.layers[0], mixer=replace(config.attention, window=700))
    windowed = replace(config, layers=(first, *config.layers[1:]))
    saved = step_bytes(config, 2, 1500) - step_bytes(windowed, 2, 1500)
    assert saved == 2 * 800 * 2 * 8 * 128 * 2


def test_experts_that_no_row_chooses_are_not_read() -> None:
    config = read_config(MODELS / "qwen3-30b-a3b")
    one, many = step_bytes(config, 1, 0), step_bytes(config, 10_000, 0)
    assert many - one == pytest.approx(48 * 120 * 3 * 2048 * 768 * 2)


def test_floors_of_the_full_size_model() -> None:
    config = read_config(MODELS / "qwen3.5-35b-a3b")
    kinds = config, config.quantised(), config.rounded().packing()
    for kind, floors in zip(kinds, ((1.41, 16.15), (0.84, 9.31), (0.74, 6.44)), strict=True):
        for rows, floor in zip((1, 64), floors, strict=True):
            found = floor_ms(kind, rows, 1280, "NVIDIA H200")
            assert found == pytest.approx(floor, rel=0.02)
