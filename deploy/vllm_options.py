"""Answers to vLLM's options on the command line of ``baton up``; docs/from-vllm.md has the same."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from typer.core import TyperCommand

_WHOLE_MODEL = "each worker holds the whole model; --prefill and --decode say how many there are"
_CHECKPOINT = "the checkpoint decides; Baton has no option for it"
_ALWAYS = "always on; leave it out"
_NOT_DONE = "not supported; docs/limits.md says what happens instead"
_PROXY = "a TLS proxy in front does that (docs/reverse-proxy.md)"

VLLM_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--api-key": "set BATON_API_KEYS=NAME:KEY in the environment, which others cannot read",
        "--allowed-origins": "set BATON_ALLOWED_ORIGINS in the environment",
        "--block-size": "set BATON_PAGE_SIZE in the environment",
        "--chat-template": "the checkpoint's own template is used",
        "--cpu-offload-gb": _NOT_DONE,
        "--data-parallel-size": "say --role colocated --workers N",
        "--disable-log-requests": "set BATON_LOG_LEVEL=warning in the environment",
        "--distributed-executor-backend": _WHOLE_MODEL,
        "--download-dir": "set HF_HUB_CACHE in the environment; nothing is downloaded at a start",
        "--dtype": "set BATON_DTYPE in the environment",
        "--enable-auto-tool-choice": _ALWAYS,
        "--enable-chunked-prefill": _ALWAYS,
        "--enable-expert-parallel": "say --spread, which computes steps of several GPUs together",
        "--enable-lora": _NOT_DONE,
        "--enable-prefix-caching": "on by default; --no-prefix-cache turns it off",
        "--enforce-eager": "not needed: a start takes under a minute (docs/performance.md)",
        "--generation-config": _CHECKPOINT,
        "--gpu-memory-utilization": "a worker uses the memory that is free beside its weights; "
        "--gpu-share divides a GPU, and BATON_GPU_MEMORY limits a worker",
        "--hf-overrides": _CHECKPOINT,
        "--kv-cache-dtype": _NOT_DONE,
        "--kv-offloading-size": "say --host-cache GB",
        "--kv-transfer-config": "built in: --prefill and --decode make the pools",
        "--language-model-only": "always so; leave it out",
        "--limit-mm-per-prompt": "text alone is served; leave it out",
        "--max-log-len": "no prompt is ever logged; leave it out",
        "--max-logprobs": "a token has up to 20; BATON_MAX_PROMPT_LOGPROBS limits those of prompts",
        "--max-model-len": "the context is the checkpoint's, as far as the memory goes; "
        "BATON_NUM_PAGES limits the cache, and max_tokens a request",
        "--max-num-batched-tokens": "set BATON_MAX_BATCH_TOKENS in the environment",
        "--max-num-seqs": "set BATON_NUM_STATE_SLOTS in the environment: sequences of a worker",
        "--no-enable-prefix-caching": "say --no-prefix-cache",
        "--num-gpu-blocks-override": "set BATON_NUM_PAGES in the environment",
        "--pipeline-parallel-size": _WHOLE_MODEL,
        "--quantization": "a checkpoint's own is read; say --quantize fp8 to convert",
        "--reasoning-parser": _ALWAYS,
        "--root-path": "set BATON_ROOT_PATH in the environment",
        "--revision": "give the folder of the snapshot as --model",
        "--scheduling-policy": "requests are served in the order of their arrival",
        "--seed": "give seed in a request",
        "--speculative-config": "say --speculate auto, off or 1 to 4",
        "--ssl-certfile": _PROXY,
        "--ssl-keyfile": _PROXY,
        "--swap-space": "say --host-cache GB",
        "--task": "text is generated; leave it out",
        "--tensor-parallel-size": _WHOLE_MODEL,
        "--tokenizer": _CHECKPOINT,
        "--tool-call-parser": _ALWAYS,
        "--trust-remote-code": "no code of a checkpoint is ever run; leave it out",
        "--uvicorn-log-level": "set BATON_LOG_LEVEL in the environment",
        "-dp": "say --role colocated --workers N",
        "-pp": _WHOLE_MODEL,
        "-q": "a checkpoint's own is read; say --quantize fp8 to convert",
        "-tp": _WHOLE_MODEL,
    }
)


class UpCommand(TyperCommand):
    """``baton up``, which answers an option of vLLM with its own way to do that."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # the shell completes a line, which may be wrong so far
            return super().parse_args(ctx, args)
        if args and not args[0].startswith("-"):
            ctx.fail(f"{args[0]}: say --model {args[0]}")
        own = {name for each in self.params for name in (*each.opts, *each.secondary_opts)}
        for argument in args:
            name = argument.partition("=")[0].replace("_", "-")
            if name not in own and (answer := VLLM_OPTIONS.get(name)):
                ctx.fail(f"{name}: is vLLM's; {answer}")
        return super().parse_args(ctx, args)
