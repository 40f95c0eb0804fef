"""``--model ORG/NAME``: models that huggingface_hub has fetched, and the advice for others."""

import json
import re
import signal
from pathlib import Path

import pytest
from huggingface_hub import constants

from deploy.settings import BUNDLED_MODEL, resolve
from transport.checkpoint_folder import CONFIG, INDEX, SINGLE, TOKENIZER, checkpoint_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cache(hub: Path, *names: str) -> Path:
    """A model Some/Tiny with these files as huggingface_hub lays it out; returns its snapshot."""
    model = hub / "models--Some--Tiny"
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    for name in names:
        (model / "blobs" / name).write_text("{}")
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    return snapshot


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty Hugging Face cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_model_in_the_cache_is_served_by_its_id(hub: Path) -> None:
    snapshot = cache(hub, CONFIG, TOKENIZER, SINGLE)
    settings = resolve(num_gpus=0, model=Path("Some/Tiny"))
    assert (settings.model, settings.served_model_name) == (snapshot, "Some/Tiny")
    named = resolve(num_gpus=0, model=Path("Some/Tiny"), served_model_name="it")
    assert named.served_model_name == "it"


@pytest.mark.parametrize("on_path", [True, False])
def test_one_that_is_not_is_refused_with_the_command_that_fetches_it(
    hub: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if on_path else None)
    message = (
        f"--model: Some/Tiny is neither a folder nor in the Hugging Face cache {hub}; "
        f"`{'' if on_path else '/.*/'}hf download Some/Tiny` fetches it"
    )
    with pytest.raises(ValueError, match=message):
        resolve(num_gpus=0, model=Path("Some/Tiny"))


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ([CONFIG, TOKENIZER], SINGLE),
        ([CONFIG, SINGLE], TOKENIZER),
        ([CONFIG, TOKENIZER, INDEX], "model-2.safetensors"),
    ],
)
def test_a_model_that_was_fetched_in_part_is_refused(
    hub: Path, names: list[str], missing: str
) -> None:
    snapshot = cache(hub, *names)
    if INDEX in names:
        (snapshot / "model-1.safetensors").touch()
        weights = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
        (snapshot / INDEX).write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(ValueError, match="--model: Some/Tiny is incomplete") as refused:
        resolve(num_gpus=0, model=Path("Some/Tiny"))
    assert f"{snapshot / missing} is missing; `" in str(refused.value)
    assert "hf download Some/Tiny` fetches the rest" in str(refused.value)


def test_random_weights_need_no_weights(hub: Path) -> None:
    snapshot = cache(hub, CONFIG, TOKENIZER)
    assert resolve(num_gpus=0, model=Path("Some/Tiny"), load_format="dummy").model == snapshot


def test_a_folder_that_exists_is_no_id(hub: Path) -> None:
    (hub / "Some" / "Tiny").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"--model: .*Some/Tiny is an empty folder"):
        resolve(num_gpus=0, model=Path("Some/Tiny"))


@pytest.mark.parametrize("path", ["/no/such", "./no", "no", "a/b/c", "../a/b", "~/a/b"])
def test_a_path_that_does_not_exist_is_no_id(hub: Path, path: str) -> None:
    with pytest.raises(ValueError, match="does not exist; give a checkpoint's folder"):
        resolve(num_gpus=0, model=Path(path))


def test_an_impossible_id_is_refused(hub: Path) -> None:
    with pytest.raises(
        ValueError, match=re.escape("--model: a/b..c is no folder, and no model id")
    ):
        resolve(num_gpus=0, model=Path("a/b..c"))


def test_the_cache_is_where_the_environment_says(up, short_dir: Path) -> None:
    cache(short_dir / "hub", CONFIG, TOKENIZER, SINGLE)
    baton = up("--model", "Some/Tiny", HF_HOME=str(short_dir), HF_HUB_OFFLINE="1")
    baton.start()
    assert "(1 prefill, 1 decode, cpu, Some/Tiny)" in baton.text
    baton.signal(signal.SIGTERM)
    assert baton.exit_code() == 0


def test_the_bundled_model_is_no_id() -> None:
    settings = resolve(num_gpus=0)
    assert settings.model == checkpoint_folder(BUNDLED_MODEL)
    assert settings.served_model_name == "tiny"
