"""The drawing kernel against the CPU sampler: the same tokens from the same seeds."""

import pytest
import torch
import triton
import triton.language as tl

from engine.kernels.sampling import triton_sampling
from engine.kernels.sampling.philox import gumbel_noise
from engine.kernels.sampling.triton_sampling import SamplingWorkspace, draw

NUM_IDS, VALID = 5000, 4801


class Settings:
    """Slots of random settings and the rows of one step, the fourth of them padding."""

    def __init__(self, device: torch.device) -> None:
        self.temperatures = torch.tensor([0.0, 0.7, 1.0, 1.3], device=device)
        self.seeds = torch.tensor([5, -(2**63), 2**40 + 3, 123], device=device)
        self.slots = torch.tensor([1, 0, 3, -1, 2], dtype=torch.int32, device=device)
        self.positions = torch.tensor([17, 4, 2**33 + 1, 0, 9], device=device)
        self.next_token = torch.full((4,), -7, device=device)
        self.workspace = SamplingWorkspace.allocate(5, NUM_IDS, device)

    def draw(self, logits: torch.Tensor, lowest: torch.Tensor | None = None) -> torch.Tensor:
        on_host = torch.full((5,), -9, pin_memory=logits.is_cuda)
        ids = draw(
            logits, VALID, self.temperatures, self.seeds, self.slots, self.positions,
            self.workspace, next_token=self.next_token, lowest=lowest, on_host=on_host,
        )  # fmt: skip
        assert ids.tolist() == on_host.tolist()
        return ids

    def truth(self, logits: torch.Tensor) -> torch.Tensor:
        slots = self.slots.long().clamp(min=0)
        logits = logits[:, :VALID]
        temperature = self.temperatures[slots].unsqueeze(1)
        noise = gumbel_noise(self.seeds[slots], self.positions, VALID)
        drawn = (logits / torch.where(temperature == 0, 1.0, temperature) + noise).argmax(-1)
        ids = torch.where(temperature[:, 0] == 0, logits.argmax(-1), drawn)
        return torch.where(self.slots < 0, -1, ids)


def test_same_tokens(device: torch.device) -> None:
    settings = Settings(device)
    for _ in range(3):
        logits = torch.randn(5, NUM_IDS, device=device)
        logits[:, VALID:] = float("nan")
        logits[1, [30, 4790]] = 9.0
        ids = settings.draw(logits)
        assert torch.equal(ids, settings.truth(logits))
        assert ids[1] == 30
        assert torch.equal(settings.next_token[[1, 0, 3, 2]], ids[[0, 1, 2, 4]])
        settings.positions += 1


def test_bad_logits_are_reported(device: torch.device) -> None:
    settings = Settings(device)
    logits = torch.randn(5, NUM_IDS, device=device)
    logits[0, 4800] = float("nan")
    logits[1, 3] = float("inf")
    logits[2, 7] = float("-inf")
    ids = settings.draw(logits)
    assert ids[:3].tolist() == [-1, -1, -1]
    assert ids[4] >= 0
    logits[0] = float("nan")
    assert settings.draw(logits)[0] == -1
    assert 0 <= settings.next_token[1] < VALID


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0, 0.7])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_row_without_any_logit_feeds_a_valid_id(
    bad: float, filtered: bool, temperature: float, device: torch.device
) -> None:
    num_ids = 300
    next_token = torch.full((1,), -7, device=device)
    ids = draw(
        torch.full((1, 304), bad, device=device), num_ids,
        torch.full((1,), temperature, device=device), torch.zeros_like(next_token),
        torch.zeros_like(next_token), torch.ones_like(next_token),
        SamplingWorkspace.allocate(1, num_ids, device), next_token=next_token,
        lowest=torch.full((1,), float("-inf"), device=device) if filtered else None,
    )  # fmt: skip
    assert 0 <= next_token[0] < num_ids
    assert ids[0] == (0 if filtered and bad < 0 else -1)


def test_ids_below_the_lowest_are_dropped(device: torch.device) -> None:
    settings = Settings(device)
    logits = torch.randn(5, NUM_IDS, device=device)
    slots = settings.slots.long().clamp(min=0)
    temperature = settings.temperatures[slots]
    scaled = logits / torch.where(temperature == 0, 1.0, temperature).unsqueeze(1)
    lowest = scaled[:, :VALID].topk(4).values[:, 3].contiguous()
    kept = torch.where(scaled < lowest.unsqueeze(1), float("-inf"), logits)
    assert torch.equal(settings.draw(logits, lowest), settings.truth(kept))


@triton.jit
def _log_kernel(p_x, p_y, NUM: tl.constexpr):
    o_x = tl.arange(0, NUM)
    tl.store(p_y + o_x, triton_sampling._log(tl.load(p_x + o_x)))


def test_the_log_is_exact_next_to_one(device: torch.device) -> None:
    """There lies the noise that wins draws."""
    u = (torch.arange(2**23 - 2048, 2**23, device=device) + 0.5) * 2.0**-23
    y = torch.empty_like(u)
    _log_kernel[(1,)](u, y, NUM=2048)
    assert ((y - u.double().log()) / y).abs().max() < 1e-7
