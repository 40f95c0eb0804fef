"""Lets the workers that tests start import torch without the parts of it that they never use, which
take a third of the time of the import. tests/conftest.py puts this folder on PYTHONPATH.

The parts are for tracing, exporting and sampling from distributions. A module without attributes
takes the place of each, so a use of one fails.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

UNUSED = {"torch._meta_registrations", "torch.distributions", "torch.export"}
WORKERS = {"colocated", "decode", "prefill"}


class Unused:
    """A finder and loader of empty modules."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in UNUSED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name, "Left out in tests, by tests/lean/sitecustomize.py.")

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "torch._meta_registrations":
            # What it imports sets this type, without which torch makes no generator.
            import torch
            from torch._opaque_base import OpaqueBaseMeta

            torch._C._set_generator_metaclass(OpaqueBaseMeta)


if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2:3] and sys.orig_argv[2] in WORKERS:
    sys.meta_path.insert(0, Unused())
