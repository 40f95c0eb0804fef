"""Kernels run on the GPU if there is one, else in Triton's interpreter."""

import pytest
import torch


def _teach_interpreter_bfloat16() -> None:
    """Its dot multiplies the bits of bfloat16 operands as integers; give it their values."""
    import triton.language as tl
    from triton.runtime import interpreter

    plain = interpreter.InterpreterBuilder.create_dot

    def widened(handle: interpreter.TensorHandle) -> interpreter.TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype("u4") << 16).view("f4"), tl.float32)

    def dot(builder, a, b, *rest):  # type: ignore[no-untyped-def]
        return plain(builder, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = dot


_teach_interpreter_bfloat16()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
