"""A checkpoint folder without weights: byte-level BPE with the family's special tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog. " * 3,
    "Der schnelle braune Fuchs springt über den faulen Hund. " * 3,
    "日本語のテキスト、漢字とかな。" * 3,
    "def main() -> None:\n    print('hello world')\n" * 3,
    "🙂🙃👩‍👩‍👧‍👦 déjà vu naïve café " * 3,
]
TEMPLATE = """\
{%- if not messages %}{{ raise_exception('No messages provided.') }}{% endif %}
{%- if tools %}{{- tools[0].function.name + '\\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('A system message must come first.') }}
    {%- elif message.role == 'tool' %}
        {{- raise_exception('There are no tools here.') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content | trim) }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def make_backend(special: Sequence[str] = SPECIAL) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    return backend


def write_checkpoint(
    folder: Path,
    *,
    max_position: int = 1024,
    template: str = TEMPLATE,
    special: Sequence[str] = SPECIAL,
) -> Path:
    """``special``: the special tokens, of which the last ends a turn and the first a text."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = make_backend(special)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    files = {
        "config.json": {
            "model_type": "qwen3_5_moe",
            "text_config": {
                "max_position_embeddings": max_position,
                "eos_token_id": backend.token_to_id(special[0]),
            },
        },
        "generation_config.json": {
            "eos_token_id": [
                backend.token_to_id(special[-1]),
                backend.token_to_id(special[0]),
            ],
            "top_k": 20,
            "top_p": 0.95,
        },
        "tokenizer_config.json": {
            "eos_token": special[-1],
            "pad_token": {"__type": "AddedToken", "content": special[0]},
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder
