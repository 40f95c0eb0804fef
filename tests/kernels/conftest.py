"""Kernels run on the GPU if there is one, else in Triton's interpreter."""

import pytest
import torch

from engine.kernels.triton_dot import INTERPRETED
from tests.kernels import interpreter

if INTERPRETED:
    interpreter.prepare()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
