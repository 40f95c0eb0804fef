"""Without a GPU Triton's interpreter runs the kernels. It is chosen when triton is first imported,
which any library may do, so before all tests."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
