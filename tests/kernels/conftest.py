"""Without a GPU Triton's interpreter runs the kernels; it is chosen when triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
