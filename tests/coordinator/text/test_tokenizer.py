"""The tokenizer against the tokenizers and transformers libraries, and what a folder may lack."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.text.chat_template import ChatTemplate, TemplateRefused
from coordinator.text.tokenizer import CheckpointInfo, Tokenizer
from tests.coordinator.checkpoint_folder import make_backend, write_checkpoint
from tests.coordinator.little_work import little_work

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": " Be brief. \n"},
        {"role": "user", "content": "漢字 🙂 <|im_end|> <think>"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "go on"},
    ],
]


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_chat_prompts_equal_those_of_transformers(
    tokenizer: Tokenizer, checkpoint: Path, messages: list[dict[str, Any]], thinking: bool
) -> None:
    from transformers import PreTrainedTokenizerFast

    reference = PreTrainedTokenizerFast.from_pretrained(str(checkpoint))
    expected = reference.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=thinking, return_dict=False
    )
    ids = tokenizer.encode_chat(messages, variables={"enable_thinking": thinking})
    assert ids.tolist() == expected


def test_thinking_is_off_unless_asked_for(tokenizer: Tokenizer) -> None:
    plain = tokenizer.decode(tokenizer.encode_chat(CONVERSATIONS[0]))
    assert plain.endswith("<think>\n\n</think>\n\n")
    variables = {"enable_thinking": True}
    asked = tokenizer.decode(tokenizer.encode_chat(CONVERSATIONS[0], variables=variables))
    assert asked.endswith("<think>\n")


def test_the_checkpoint_says_how_to_sample_and_where_to_stop(tokenizer: Tokenizer) -> None:
    backend = make_backend()
    ends = (backend.token_to_id("<|im_end|>"), backend.token_to_id("<|endoftext|>"))
    assert tokenizer.info.eos_ids == ends
    assert tokenizer.info.sampling_defaults == {"top_k": 20, "top_p": 0.95}
    assert tokenizer.info.max_position == 1024
    assert tokenizer.num_valid_ids == backend.get_vocab_size(with_added_tokens=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no') }}", "no"),
        ("{{ messages[0].nothing.at_all }}", "no attribute"),
        ("{{ messages + 1 }}", "list"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)
def test_whatever_goes_wrong_in_a_template_is_a_refusal(source: str, message: str) -> None:
    template = ChatTemplate(source, {})
    with pytest.raises(TemplateRefused, match=message):
        template.render(CONVERSATIONS[0])


def test_a_template_that_does_not_parse_is_an_error_at_the_start() -> None:
    with pytest.raises(ValueError, match="does not parse"):
        ChatTemplate("{% if %}", {})


def test_the_extras_that_templates_use() -> None:
    source = (
        "{% for x in [1, 2, 3] %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}"
        "{{ {'ä': '<'} | tojson }}{{ strftime_now('%Y') | length }}"
        "{% generation %}{{ eos_token }}{% endgeneration %}"
    )
    assert ChatTemplate(source, {"eos_token": "E"}).render([]) == '12{"ä": "<"}4E'


def test_a_named_template_in_the_config_is_found(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "a")
    (folder / "chat_template.jinja").unlink()
    templates = [{"name": "rag", "template": "x"}, {"name": "default", "template": "y"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    template = ChatTemplate.read(folder)
    assert template is not None
    assert template.render([]) == "y"


def test_a_base_model_has_no_template(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "a")
    (folder / "chat_template.jinja").unlink()
    tokenizer = Tokenizer.load(folder)
    with pytest.raises(TemplateRefused, match="no chat template"):
        tokenizer.encode_chat(CONVERSATIONS[0])
    tokenizer.close()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff"])
def test_a_bad_folder_is_named(
    tmp_path: Path, checkpoint: Path, name: str, content: bytes | None
) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "bad"))
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        Tokenizer.load(folder)


def test_a_decoder_of_another_kind_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    content = json.loads((folder / "tokenizer.json").read_text())
    content["decoder"] = {"type": "Fuse"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="Fuse"):
        Tokenizer.load(folder)


def test_eos_may_be_one_id(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 8, "eos_token_id": 3}')
    assert CheckpointInfo.read(tmp_path).eos_ids == (3,)


def test_a_text_far_too_long_is_measured_by_its_start(tokenizer: Tokenizer) -> None:
    text = "fox jumps " * 400_000
    with little_work(0.5):
        ids = tokenizer.encode(text, max_len=100)
    assert 100 < len(ids) < 5000
    spaces = "hello world" * 100
    assert tokenizer.encode(spaces, max_len=100) == tokenizer.encode(spaces)[: len(spaces)]


async def test_encoding_leaves_the_event_loop_free(tokenizer: Tokenizer) -> None:
    text = "The quick brown fox. " * 60_000
    work = asyncio.ensure_future(tokenizer.run(tokenizer.encode, text))
    num_turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    assert len(await work) > 60_000
    assert num_turns > 10


def test_the_control_plane_loads_no_torch() -> None:
    program = (
        "import sys, coordinator.http.api, telemetry.logs; "
        "print([m for m in ('torch', 'cupy', 'triton', 'transformers', 'numpy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
