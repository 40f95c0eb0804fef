"""``python -m bench.interference_plot``: results of bench.interference as one picture.

    python -m bench.interference_plot bench/results/h200-split-1-3-interference.json \\
        bench/results/h200-both-4-interference.json --out docs/interference.svg

For each set-up two bars a percentile, of the gaps between tokens: the streams alone, and beside
long prompts that arrive.
"""

import json
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer

PERCENTILES = {"p50": "itl_p50_ms", "p99": "itl_p99_ms", "max": "itl_max_ms"}
PHASES = {"quiet": ("#8a8f95", "alone"), "disturbed": ("#d55e00", "beside arriving prompts")}
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 640, 130, 70, 14, 10, 44


def plot(results: dict[str, dict[str, Any]]) -> str:
    """An SVG document; ``results`` are set-ups with their phases, as bench.interference has
    them."""
    longest = max(each[phase]["itl_max_ms"] for each in results.values() for phase in PHASES)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, y = _legend(), TOP
    for setup, phases in results.items():
        parts.append(_text(8, y + BAR, setup, weight="bold"))
        for name, key in PERCENTILES.items():
            parts.append(_text(LEFT - 8, y + BAR + 4, name, anchor="end"))
            for phase, (colour, _) in PHASES.items():
                value = phases[phase][key]
                length = round(value * scale, 1)
                parts.append(
                    f'<rect x="{LEFT}" y="{y}" width="{length}" height="{BAR - 2}" '
                    f'fill="{colour}"/>'
                )
                parts.append(_text(LEFT + length + 5, y + BAR - 4, f"{value:.1f}"))
                y += BAR
            y += GAP
        y += GAP
    parts.append(_text(LEFT, y + 6, "ms between two tokens of a stream"))
    box = f'viewBox="0 0 {WIDTH} {y + 16}" width="{WIDTH}" height="{y + 16}"'
    style = 'font-family="sans-serif" font-size="12"'
    background = f'<rect width="{WIDTH}" height="{y + 16}" fill="#fff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {style}>'
    return f"{head}{background}{''.join(parts)}</svg>\n"


def _legend() -> list[str]:
    parts, x = [], LEFT
    for colour, meaning in PHASES.values():
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, 24, meaning))
        x += 110
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    place = f'x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(text)}</text>"


def main(
    files: Annotated[list[Path], typer.Argument(help="Results of bench.interference.")],
    out: Annotated[Path, typer.Option(help="Where the SVG goes.")],
) -> None:
    """Draw them below one another."""
    results: dict[str, Any] = {}
    try:
        for file in files:
            results |= json.loads(file.read_text())["results"]
        out.write_text(plot(results))
    except (OSError, ValueError, KeyError) as error:
        raise typer.BadParameter(f"{error!r}") from None


if __name__ == "__main__":
    typer.run(main)
