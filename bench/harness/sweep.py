"""The sweep that finds goodput: a run at each rate that the search asks for.

Both shares use the same trials: a rate is run once. Each search ends by the rule of
figures/goodput.py, or once ``max_trials`` rates have been run for all shares together. What is
reported was measured at that very rate, by either search.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.harness.figures.goodput import Bounds, search
from bench.harness.figures.outcome import failures
from bench.harness.load_result import Run
from bench.harness.load_settings import SHARES, LoadSettings
from bench.harness.run_control import RunControl


@dataclass
class Sweep:
    """The result of a sweep, which grows trial by trial."""

    settings: LoadSettings
    tokenizer: str
    trials: dict[float, Run] = field(default_factory=dict)
    goodput: dict[float, Bounds] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return {
            "seed": self.settings.seed,
            "tokenizer": self.tokenizer,
            "goodput": {
                f"{share:.0%}": {"requests_per_s": bounds.met, "missed_at": bounds.missed}
                for share, bounds in self.bounds().items()
            },
            "trials": [self.trials[rate].json() for rate in sorted(self.trials)],
            "failures": [f for run in self.trials.values() for f in failures(run.outcomes)],
        }

    def bounds(self) -> dict[float, Bounds]:
        """Goodput and the lowest missed rate, by all trials, for each share whose search ended."""
        attained = {rate: run.attained for rate, run in self.trials.items()}
        return {share: found.tightened(attained, share) for share, found in self.goodput.items()}

    def problems(self) -> list[str]:
        found = [
            problem
            for _, run in sorted(self.trials.items())
            for problem in run.problems(refusals=False)
        ]
        for share, bounds in self.bounds().items():
            if bounds.met is None:
                found.append(f"no rate had {share:.0%} of the requests within the targets")
        return found

    def headline(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json()["goodput"]
        return {"goodput": found, "trials": len(self.trials)}


async def sweep(
    settings: LoadSettings,
    tokenizer: str,
    run: Callable[[float], Awaitable[Run]],
    control: RunControl,
) -> Sweep:
    """Find the goodput at each of SHARES, or at as many as ``control`` leaves time for."""
    assert settings.rate is not None, "a sweep has a first rate"
    found = Sweep(settings, tokenizer)
    first = settings.rate
    for share in SHARES:
        rates = search(first, share, tolerance=settings.tolerance, max_trials=settings.max_trials)
        rate = next(rates)
        while control.stopped is None:
            if rate not in found.trials:
                if len(found.trials) == settings.max_trials:
                    found.goodput[share] = Bounds(None, None)  # ``bounds`` has what the trials say
                    break
                found.trials[rate] = await run(rate)
            try:
                rate = rates.send(found.trials[rate].attained)
            except StopIteration as end:
                found.goodput[share] = end.value
                first = end.value.met or first
                break
    return found
