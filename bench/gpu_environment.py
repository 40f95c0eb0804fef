"""Describes the GPU of a measurement that computes in its own process."""

import subprocess
import sys
from importlib.metadata import version
from typing import Any

import torch

from bench.environment import describe


def gpu_environment(module: str, commit: str) -> dict[str, Any]:
    """Where a result was made: machine, GPU and versions; ``commit`` where there is no checkout."""
    return describe(sys.argv[1:], module) | _gpu() | ({"commit": commit} if commit else {})


def _gpu() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    name, _, driver = (
        subprocess.run(query, capture_output=True, text=True, check=True)
        .stdout.strip()
        .partition(", ")
    )
    return {
        "gpu": name,
        "driver": driver,
        "cuda": torch.version.cuda or "",
        "triton": version("triton"),
    }
