"""Notes of kernel variants, in a form that does not depend on the version of Triton.

``{"kernel": "engine.kernels.dense.triton_x._x_kernel", "arguments": {"p_x": "*bf16 aligned",
"SIZE": 64}, "options": {"num_warps": 8}}``: types of arguments, the values of those that are
constants, and the options that differ from Triton's defaults. Triton's own notes
(``specialization_data``) have every option, and their other content depends on the version.
"""

import json
from importlib.metadata import version
from typing import Any

ALIGNED, UNALIGNED = " aligned", " unaligned"
"""Suffix of the type of an argument for which Triton checks divisibility by 16: an address in
bytes, or a number."""
DIVISIBLE = [["tt.divisibility", 16]]
OPTIONS = {
    "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "enable_fp_fusion": True,
    "launch_cooperative_grid": False, "launch_pdl": False,
}  # fmt: skip
"""Options that a launch can set, with Triton's defaults. Other options are left to Triton."""
CONSTANTS_HAVE_PROPERTIES = tuple(map(int, version("triton").split(".")[:2])) >= (3, 7)
"""True if Triton lists the properties of constants (always none), which are part of its cache
key."""


def noted(data: str) -> str:
    """The note of a variant, from Triton's ``specialization_data``. Raises ValueError for a
    property of an argument that notes cannot express."""
    triton = json.loads(data)
    arguments: dict[str, Any] = dict(triton["signature"])
    names = list(arguments)
    for (place,), value in zip(triton["constant_keys"], triton["constant_vals"], strict=True):
        arguments[names[place]] = value
    for (place,), properties in zip(triton["attrs_keys"], triton["attrs_vals"], strict=True):
        if properties not in ([], DIVISIBLE):
            raise ValueError(f"{triton['name']}: {names[place]} has the properties {properties}")
        if [place] not in triton["constant_keys"]:
            arguments[names[place]] += ALIGNED if properties else UNALIGNED
    options = {
        name: triton["options"][name]
        for name, usual in OPTIONS.items()
        if triton["options"][name] != usual
    }
    return json.dumps({"kernel": triton["name"], "arguments": arguments, "options": options})


def for_triton(note: str, arch: int) -> str:
    """The data from which the installed Triton compiles a noted variant
    (``JITFunction.preload``)."""
    given = json.loads(note)
    signature: dict[str, str] = {}
    constants: dict[int, Any] = {}
    attributes: dict[int, Any] = {}
    for place, (name, value) in enumerate(given["arguments"].items()):
        if isinstance(value, str):
            signature[name] = value.removesuffix(ALIGNED).removesuffix(UNALIGNED)
            if signature[name] != value:
                attributes[place] = DIVISIBLE if value.endswith(ALIGNED) else []
        else:
            signature[name], constants[place] = "constexpr", value
            if CONSTANTS_HAVE_PROPERTIES:
                attributes[place] = []
    return json.dumps(
        {
            "name": given["kernel"],
            "signature": signature,
            "constant_keys": [[place] for place in constants],
            "constant_vals": list(constants.values()),
            "attrs_keys": [[place] for place in attributes],
            "attrs_vals": list(attributes.values()),
            "options": given["options"],
            "key": note,
            "target": {"backend": "cuda", "arch": arch, "warp_size": 32},
        }
    )
