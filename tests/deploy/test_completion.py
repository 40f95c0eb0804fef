"""A shell completes the commands and options of ``baton``, as docs/settings.md says."""

import pytest
from typer.testing import CliRunner

from deploy.cli import app


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("baton st", "status"), ("baton up --serv", "--served-model-name")],
)
def test_a_shell_completes(typed: str, completed: str) -> None:
    last_word = str(len(typed.split()) - 1)
    asked = {"_BATON_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": last_word}
    told = CliRunner().invoke(app, [], prog_name="baton", env=asked)
    assert told.exit_code == 0
    assert completed in told.stdout.split()
