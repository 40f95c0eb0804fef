"""The manifests as they are rendered are kept in ``golden/``: a change shows in the diff.

After one: python -m tests.kubernetes.test_golden
"""

from pathlib import Path

import pytest

from tests.kubernetes.rendered import SETS, rendered

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", SETS)
def test_the_rendered_manifests_are_those_kept(name: str) -> None:
    assert rendered(name) == (GOLDEN / f"{name}.yaml").read_text(), (
        "rendered otherwise; if that is meant: python -m tests.kubernetes.test_golden"
    )


def test_no_other_are_kept() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(SETS)


if __name__ == "__main__":
    for each in SETS:
        (GOLDEN / f"{each}.yaml").write_text(rendered(each))
