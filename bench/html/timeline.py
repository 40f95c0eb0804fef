"""What happened in each second, of the requests and of the GPUs."""

from collections.abc import Sequence
from typing import Any

from bench.html.elements import figure, figures, section
from bench.html.svg import Axis, Line, chart

_TITLES = {
    "tokens": ("Tokens a second", "tok/s"),
    "running": ("Requests under way", "requests"),
    "arrivals": ("Arrivals", "requests"),
    "ttft_p50_ms": ("TTFT p50 of the first tokens that came", "ms"),
    "failed": ("Failed", "requests"),
}
_SECONDS = Axis("seconds")


def timeline(seconds: Sequence[dict[str, Any]]) -> str:
    """From figures/timeline.py; nothing where there is none."""
    if not seconds:
        return ""
    drawn = []
    for key, (title, unit) in _TITLES.items():
        points = [(second["second"], second[key]) for second in seconds]
        if any(value for _, value in points):
            drawn.append(figure(title, chart([Line(title, points)], _SECONDS, Axis(unit))))
    return section("Second by second", figures(*drawn))


def gpus(samples: Sequence[dict[str, Any]]) -> str:
    """A chart for each number that samples hold, a line for each GPU. A sample is ``{"at_s": 1.0,
    "gpus": [{"index": 0, "power_w": 410.0, ...}]}``."""
    keys = list(dict.fromkeys(k for s in samples for gpu in s["gpus"] for k in gpu))
    drawn = []
    for key in (key for key in keys if key != "index"):
        lines: dict[int, list[tuple[float, float | None]]] = {}
        for sample in samples:
            for number, gpu in enumerate(sample["gpus"]):
                value = gpu.get(key)
                if isinstance(value, int | float):
                    at = lines.setdefault(gpu.get("index", number), [])
                    at.append((sample["at_s"], float(value)))
        if lines:
            named = [Line(f"GPU {index}", points) for index, points in sorted(lines.items())]
            title = key.replace("_", " ")
            drawn.append(figure(title, chart(named, _SECONDS, Axis(title))))
    return section("GPU health", figures(*drawn)) if drawn else ""
