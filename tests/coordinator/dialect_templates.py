"""Chat templates that write as those of the served families do, as short as they can be."""

from pathlib import Path

from tests.coordinator.checkpoint_folder import SPECIAL, write_checkpoint

_TURNS = """\
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
"""
_TOLD = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
"""
QWEN25 = _TOLD + _TURNS + "{%- endif %}"
QWEN3 = (
    _TOLD
    + _TURNS
    + """\
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
)
LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
    {%- if loop.first and tools %}
        {%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
    {%- endif %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
    {%- else %}
        {{- message.content | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
GEMMA3 = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate.') }}
    {%- endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\\n' + message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}
"""
OTHER = """\
{%- for tool in tools or [] %}{{- '[TOOL]' + tool | tojson }}{% endfor %}
{%- for message in messages %}
    {{- '[' + message.role + ']' + message.content }}
    {%- for call in message.tool_calls or [] %}{{- '[CALL]' + call | tojson }}{% endfor %}
{%- endfor %}
"""
_LLAMA_TOKENS = [
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eot_id|>",
]  # fmt: skip
_GEMMA_TOKENS = ["<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
TEMPLATES = {
    "qwen2.5": (QWEN25, SPECIAL),
    "qwen3": (QWEN3, SPECIAL),
    "llama3": (LLAMA3, _LLAMA_TOKENS),
    "gemma3": (GEMMA3, _GEMMA_TOKENS),
    "other": (OTHER, SPECIAL),
}
"""Each template with the special tokens of its vocabulary."""


def dialect_folder(folder: Path, name: str) -> Path:
    """A checkpoint folder whose chats are written as those of ``name``."""
    template, special = TEMPLATES[name]
    return write_checkpoint(folder / name, template=template, special=special)
