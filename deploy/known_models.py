"""Which models fit a GPU, by the sizes of their weights and caches. Without torch: ``baton doctor``
asks before anything is loaded.

The sizes are the engine's own (tests/deploy/test_known_models.py). The whole model is on each GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.findings import Finding

GIB = 1 << 30
WORKING_BYTES = 9 * GIB + GIB // 8
"""What the engine keeps free to work in, and the CUDA context."""
FEW_TOKENS = 512
FEW_WORKING_BYTES = 2 * GIB + 5 * GIB // 16
"""The same with ``--max-batch-tokens`` 512, for small cards."""
NUM_REQUESTS, NUM_TOKENS = 8, 8_192
"""A model fits if so many requests of this length can be served at once."""


@dataclass(frozen=True)
class KnownModel:
    """``weights``: bytes by the values of ``--quantize``, without drafts ("none": in BF16).
    ``token_bytes`` of the cache for each token, ``state_bytes`` for each request."""

    name: str
    weights: Mapping[str, int]
    token_bytes: int
    state_bytes: int

    def formats_for(self, gpu_bytes: int, working_bytes: int = WORKING_BYTES) -> list[str]:
        """The formats of weights with which the model fits."""
        cache = NUM_REQUESTS * (NUM_TOKENS * self.token_bytes + self.state_bytes)
        room = gpu_bytes - working_bytes - cache
        return [name for name, num_bytes in self.weights.items() if num_bytes <= room]


KNOWN = {
    "qwen3.5-35b-a3b": KnownModel(
        "Qwen3.5-35B-A3B",
        {
            "none": 69_324_196_352,
            "fp8": 35_715_057_152,
            "nvfp4": 21_614_454_272,
            "nvfp4-lm-head": 20_883_415_712,
        },
        20_480,
        64_389_120,
    ),
    "qwen3.5-122b-a10b": KnownModel(
        "Qwen3.5-122B-A10B",
        {
            "none": 244_228_497_408,
            "fp8": 123_726_210_048,
            "nvfp4": 72_963_744_768,
            "nvfp4-lm-head": 71_867_179_168,
        },
        24_576,
        153_649_152,
    ),
    "qwen3.5-9b": KnownModel(
        "Qwen3.5-9B",
        {
            "none": 17_908_303_872,
            "fp8": 10_997_778_432,
            "nvfp4": 7_972_086_784,
            "nvfp4-lm-head": 6_509_994_144,
        },
        32_768,
        51_511_296,
    ),
    "qwen3-30b-a3b": KnownModel(
        "Qwen3-30B-A3B",
        {
            "none": 61_065_502_720,
            "fp8": 31_175_802_880,
            "nvfp4": 18_485_223_424,
            "nvfp4-lm-head": 18_037_933_336,
        },
        98_304,
        0,
    ),
    "llama-3.1-8b": KnownModel(
        "Llama-3.1-8B",
        {
            "none": 16_061_054_976,
            "fp8": 9_083_437_056,
            "nvfp4": 6_028_365_824,
            "nvfp4-lm-head": 5_273_202_512,
        },
        131_072,
        0,
    ),
    "qwen3-0.6b": KnownModel(
        "Qwen3-0.6B",
        {"none": 1_192_546_304, "fp8": 752_251_904, "nvfp4": 559_490_048},
        114_688,
        0,
    ),
}
"""By the folder in bench/models that has the model's configuration."""


def models_that_fit(gpu_bytes: int) -> Finding:
    """What a GPU of so much memory can serve, of the models whose sizes are known."""
    names, more = list[str](), list[str]()
    for model in KNOWN.values():
        formats = model.formats_for(gpu_bytes)
        others = set(model.formats_for(gpu_bytes, FEW_WORKING_BYTES)) - set(formats)
        names += [f"{model.name} ({', '.join(formats)})"] if formats else []
        more += [f"{model.name} ({', '.join(sorted(others))})"] if others else []
    what = f"{NUM_REQUESTS} requests of {NUM_TOKENS:,} tokens at once on {gpu_bytes / GIB:.0f} GiB"
    if not names and not more:
        advice = "smaller models may fit: docs/models.md"
        return Finding("warn", "models", f"no known model has room for {what}", advice)
    parts = [f"by --quantize: {'; '.join(names)}"] if names else []
    parts += [f"with BATON_MAX_BATCH_TOKENS={FEW_TOKENS}: {'; '.join(more)}"] if more else []
    return Finding("ok", "models", f"room for {what}, {', and '.join(parts)}")
