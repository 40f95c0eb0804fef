"""What a result file says about where it was made."""

import json
from pathlib import Path

from bench import environment


def test_a_description_is_json_without_this_machines_folders() -> None:
    found = environment.describe(["--quick"])
    assert found["command"] == "python -m bench --quick"
    assert found["cores"] >= 1
    assert found["packages"]["torch"] != "none"
    assert str(Path.home()) not in json.dumps(found)


def test_a_tree_without_git_has_no_commit(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment.commit() == "unknown"
