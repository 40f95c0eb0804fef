"""Every figure is in the picture."""

from pathlib import Path
from xml.etree import ElementTree

from bench.interference_plot import plot

QUIET = {"itl_p50_ms": 5.0, "itl_p99_ms": 6.0, "itl_max_ms": 10.0}
DISTURBED = {"itl_p50_ms": 5.5, "itl_p99_ms": 40.0, "itl_max_ms": 80.0}


def test_bars_are_labelled(tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    plot({"colocated:4": {"quiet": QUIET, "disturbed": DISTURBED}}, out)
    drawn = out.read_text()
    ElementTree.fromstring(drawn)
    labels = [f"{value:.1f}" for value in (*QUIET.values(), *DISTURBED.values())]
    for text in ("colocated:4  p99", "beside arriving prompts", *labels):
        assert f"<!-- {text} -->" in drawn
