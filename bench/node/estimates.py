"""How long each part should take. Pure.

With one GPU's table: by the predictor, and by what was measured on H200s beside it. Without one: at
``TOKENS_PER_S``, about what two busy cores do with the bundled model.
"""

from bench.node.plan import Kind, Part, Served, Starts
from bench.node.sizes import Sizes
from bench.predict.pools import Level, Node, predict

TOKENS_PER_S = 300.0
BETWEEN_LEVELS_S = 3.0
"""Making prompts and warming up; 3.6 s a level with 64 requests on the machines of the results."""
REQUEST_S = 0.01
"""More for each request: its prompt is made and its answer counted."""
DOCTOR_S, DOCTOR_DEVICE_S = 20.0, 8.0
KILLED_BACK_S = {"cuda": 10.0, "cpu": 30.0}
SOAK_HANDOFFS_PER_S = 10.0
"""On H200s a killed worker is back after 9 to 10 s, and 1,042 handoffs took 91 s with six kills
(h200-handoff-soak.json); on busy cores it is back after up to a minute."""
GPU_STARTS = Starts(95.0, 60.0)
"""Full size: with a cold Triton cache, and with a warm one."""
CPU_STARTS = Starts(20.0, 20.0)


def starts(device: str) -> Starts:
    return GPU_STARTS if device == "cuda" else CPU_STARTS


def part(kind: Kind, served: Served, sizes: Sizes, device: str, node: Node | None) -> Part:
    """``node`` is what one GPU takes, None: unknown."""

    def all_of(levels: list[Level]) -> float:
        each = [BETWEEN_LEVELS_S + REQUEST_S * level.requests for level in levels]
        return sum(each) + sum(_seconds(level, served, node) for level in levels)

    match kind:
        case "doctor":
            seconds = DOCTOR_S + DOCTOR_DEVICE_S * (
                served.setup.num_workers if device == "cuda" else 1
            )
        case "levels":
            levels = sizes.levels if served.mode == "plain" else sizes.mode_levels
            seconds = all_of([sizes.level(n) for n in levels])
        case "crowd":
            seconds = all_of([sizes.crowd(n) for n in sizes.crowds])
        case "handoff":
            seconds = all_of([sizes.handoff_alone, sizes.handoff_long])
        case "interference":
            number, prompt_len, output_len = sizes.streams
            seconds = 3 * all_of([Level(number, number, prompt_len, output_len)])
        case "soak":
            plan = sizes.soak
            seconds = starts(device).of(1) + plan.handoffs / SOAK_HANDOFFS_PER_S
            seconds += plan.kills * KILLED_BACK_S[device]
    return Part(kind, served, round(seconds, 1))


def _seconds(level: Level, served: Served, node: Node | None) -> float:
    if node is None:
        return level.requests * (level.input_len + level.output_len) / TOKENS_PER_S
    return predict(node, served.setup, level).seconds
