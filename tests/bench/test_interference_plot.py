"""Every figure is in the picture, and lengths are to scale."""

import re
from xml.etree import ElementTree

from bench.interference_plot import LEFT, RIGHT, WIDTH, plot

QUIET = {"itl_p50_ms": 5.0, "itl_p99_ms": 6.0, "itl_max_ms": 10.0}
DISTURBED = {"itl_p50_ms": 5.0, "itl_p99_ms": 40.0, "itl_max_ms": 80.0}


def test_bars_are_to_scale_and_labelled() -> None:
    drawn = plot({"both:4": {"quiet": QUIET, "disturbed": DISTURBED}})
    ElementTree.fromstring(drawn)
    lengths = [float(n) for n in re.findall(rf'<rect x="{LEFT}" y="\d+" width="([\d.]+)" h', drawn)]
    room = WIDTH - LEFT - RIGHT
    expected = [n / 80 * room for n in (5, 5, 6, 40, 10, 80)]
    assert [round(n) for n in lengths[-6:]] == [round(n) for n in expected]
    assert all(f">{n:.1f}<" in drawn for n in (*QUIET.values(), *DISTURBED.values()))
    assert ">both:4<" in drawn
