"""``baton up`` answers vLLM's options, and docs/from-vllm.md names the same ones."""

import re

import pytest
from typer.testing import CliRunner

from bench.stack import ROOT
from deploy.cli import app
from deploy.vllm_options import VLLM_OPTIONS

PAGE = (ROOT / "docs" / "from-vllm.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("option", VLLM_OPTIONS)
def test_an_option_of_vllm_gets_an_answer(option: str) -> None:
    for arguments in ([option, "1"], [f"{option}=1"], ["--speculate", "off", option]):
        told = CliRunner().invoke(app, ["up", *arguments])
        assert told.exit_code == 2
        assert f"Error: {option}: is vLLM's; {VLLM_OPTIONS[option]}" in told.stderr


def test_underscores_are_read_as_vllm_reads_them() -> None:
    told = CliRunner().invoke(app, ["up", "--max_model_len", "8192"])
    assert "--max-model-len: is vLLM's" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["up", "Qwen/Qwen3.5-35B-A3B"], "say --model Qwen/Qwen3.5-35B-A3B"),
        (["serve", "Qwen/Qwen3.5-35B-A3B"], "`baton up --model MODEL` serves"),
        (["up", "--no-such-thing"], "No such option: --no-such-thing"),
    ],
)
def test_its_command_gets_an_answer(arguments: list[str], answer: str) -> None:
    told = CliRunner().invoke(app, arguments)
    assert (told.exit_code, answer in told.stderr) == (2, True), told.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("baton up --max-model-len 8192 --gpu", ["--gpu-share"]),
        ("baton up Qwen/Qwen3.5-35B-A3B --gpu", ["--gpu-share"]),
        ("baton serve Qwen/Qwen3.5-35B-A3B --gpu", []),
    ],
)
def test_a_line_for_vllm_is_completed_without_an_error(words: str, completed: list[str]) -> None:
    told = CliRunner().invoke(
        app,
        [],
        env={
            "_BATON_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
    )
    assert (told.stderr, told.stdout.split()) == ("", completed)


def test_the_page_has_each_option() -> None:
    listed = set(re.findall(r"`(--?[a-z][\w-]*)", PAGE.split("## Options\n")[1].split("\n## ")[0]))
    assert set(VLLM_OPTIONS) <= listed


def test_answers_name_options_and_settings_that_exist() -> None:
    help_text = CliRunner().invoke(app, ["up", "--help"]).stdout
    settings = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for answer in VLLM_OPTIONS.values():
        for name in re.findall(r"(?<![\w-])--[a-z-]+", answer):
            assert name in help_text, answer
        for name in re.findall(r"BATON_[A-Z_]+", answer):
            assert name in settings, answer
