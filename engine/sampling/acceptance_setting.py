"""The setting of a given draft acceptance (given_acceptance.py), without torch."""


def require_draft_acceptance(
    given: float, load_format: str, *, drafts: bool, name: str = "draft_acceptance"
) -> None:
    """Raise ValueError naming the setting ``name`` unless drafts may be accepted with the
    probability ``given``. ``drafts``: the workers make drafts."""
    if not 0.0 <= given <= 1.0:
        raise ValueError(f"{name}: {given:g} is not from 0 to 1")
    if load_format != "dummy":
        raise ValueError(
            f"{name}: is for benchmarks with random weights, and needs the load format dummy: a "
            f"real model decides itself which drafts it accepts"
        )
    if not drafts:
        raise ValueError(f"{name}: {given:g}, but speculate is off, so there are no drafts")
