"""What a first start compiles ahead is readable, and of kernels that there are."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from engine.kernels.compiling import first_start
from engine.kernels.compiling.notes import OPTIONS, for_triton, noted
from engine.model.registry import read_config
from tests.examples import ALL

ROOT = Path(__file__).parents[2]
FULL_SIZE = ROOT / "bench/models/qwen3.5-35b-a3b"


def test_the_full_size_model_has_notes_for_either_kind_of_weights():
    config = read_config(FULL_SIZE)
    bf16 = first_start.notes(config, 90, spreads=False)
    fp8 = first_start.notes(config.quantised(), 90, spreads=False)
    assert bf16 == first_start.read(90, "bf16")
    assert fp8 == first_start.read(90, "fp8")
    assert bf16
    assert fp8
    assert bf16 != fp8


def test_other_models_and_gpus_have_none():
    config = read_config(FULL_SIZE)
    assert first_start.notes(read_config(ROOT / "models/tiny"), 90, spreads=True) == ()
    assert first_start.notes(config, 100, spreads=True) == ()


def test_experts_in_nvfp4_have_notes_beside_those_of_the_other_matrices():
    config = read_config(FULL_SIZE)
    experts = set(first_start.read(90, "nvfp4"))
    made, stored = config.rounded().packing(), config.packing()
    assert set(first_start.notes(made, 90, spreads=False)) == experts | set(
        first_start.read(90, "fp8")
    )
    assert set(first_start.notes(stored, 90, spreads=False)) == experts | set(
        first_start.read(90, "bf16")
    )
    kernels = {json.loads(note)["kernel"].rpartition(".")[2] for note in experts}
    assert {"nvfp4_gate_up_kernel", "nvfp4_down_kernel", "_widen_kernel"} <= kernels


def test_members_of_spread_groups_have_notes_beside_those_of_all():
    config = read_config(FULL_SIZE)
    alone = set(first_start.notes(config, 90, spreads=False))
    found = set(first_start.notes(config, 90, spreads=True))
    assert alone < found
    kernels = {json.loads(note)["kernel"].rpartition(".")[2] for note in found - alone}
    assert {"_collect_kernel", "_push_kernel", "_agree_kernel", "_offer_kernel"} <= kernels


@pytest.mark.parametrize("weights", get_args(first_start.Kind))
def test_each_note_has_the_parameters_that_its_kernel_has(weights):
    """Else a first start compiles it at its launch: note a start on a GPU again, and run
    ``python -m engine.kernels.compiling.first_start``."""
    for note in map(json.loads, first_start.read(90, weights)):
        module, _, name = note["kernel"].rpartition(".")
        kernel = getattr(import_module(module), name)
        assert list(note["arguments"]) == kernel.arg_names, note["kernel"]


@pytest.mark.parametrize("weights", get_args(first_start.Kind))
def test_a_note_says_to_triton_what_it_was_made_of(weights):
    for note in first_start.read(90, weights):
        data = json.loads(for_triton(note, 90))
        data["options"] = OPTIONS | data["options"]
        assert noted(json.dumps(data)) == note


@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    "start", [("none", 0), ("none", 3), ("fp8", 0), ("fp8", 3)] if ALL else [("none", 0)]
)
def test_what_decode_steps_launch_is_noted(start):
    """Else run ``python -m tests.engine.start_notes``."""
    code = f"from tests.engine.start_notes import missing; print(*missing{start}, sep='\\n')"
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TRITON_INTERPRET": "0"},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert not found.stdout.strip()
