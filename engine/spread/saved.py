# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What a decode step changes of its sequences, kept as it was before the step.

A spread step that was aborted is computed again locally, from the conv and recurrent states and the
fed tokens that it began with. KV behind a sequence's end is overwritten, and needs no copy.

Steps are launched before the outcome of the last one is known. Once a step was aborted, only the
device knows it; it then saves no state again that the aborted step, or one behind it, has changed.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from engine.upload import upload

WORDS_AT_ONCE = 4096


@triton.jit
def _save_kernel(
    p_states, p_saved, p_slots, p_saved_in, p_first_aborted, num_words,
    BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.load(p_slots + tl.program_id(0))
    first_aborted = tl.load(p_first_aborted)
    if (first_aborted == 0) | (tl.load(p_saved_in + slot) < first_aborted):
        o_word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = o_word < num_words
        b_words = tl.load(p_states + slot * num_words + o_word, mask=mask)
        tl.store(p_saved + slot * num_words + o_word, b_words, mask=mask)


class SavedStates:
    """Of every state slot, as it was before a step. Rounds are above 0, and rise."""

    def __init__(self, states: Sequence[torch.Tensor]) -> None:
        """``states`` are tensors [state slots, …], each slot's part contiguous and of whole
        8-byte words."""
        self._states = [_words(state) for state in states]
        self._saved = [torch.empty_like(words) for words in self._states]
        num_slots, device = len(self._states[0]), self._states[0].device
        self._saved_in = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._first_aborted = torch.zeros(1, dtype=torch.int64, device=device)

    def save(self, state_slots: Sequence[int], round_: int) -> None:
        """Enqueue the copies of what the step of this round is to change."""
        if not state_slots:
            return
        slots = upload(torch.tensor(state_slots, dtype=torch.int64), self._saved_in.device)
        for words, saved in zip(self._states, self._saved, strict=True):
            num_words = words.shape[1]
            block = min(WORDS_AT_ONCE, triton.next_power_of_2(num_words))
            _save_kernel[(len(state_slots), triton.cdiv(num_words, block))](
                words, saved, slots, self._saved_in, self._first_aborted, num_words,
                BLOCK=block, num_warps=8,
            )  # fmt: skip
        saved_in = self._saved_in.index_select(0, slots)
        kept = (self._first_aborted > 0) & (saved_in >= self._first_aborted)
        self._saved_in.index_copy_(0, slots, torch.where(kept, saved_in, round_))

    def ended(self, round_: int, aborted: torch.Tensor) -> None:
        """Enqueue, behind the step of this round, whether it was aborted: ``aborted`` [1]."""
        is_first = (aborted != 0) & (self._first_aborted == 0)
        self._first_aborted.copy_(torch.where(is_first, round_, self._first_aborted))

    def restore(self, state_slots: Sequence[int]) -> None:
        """Enqueue the way back of those that the first aborted step and those behind it have
        changed."""
        slots = torch.tensor(state_slots, dtype=torch.int64, device=self._saved_in.device)
        for words, saved in zip(self._states, self._saved, strict=True):
            words.index_copy_(0, slots, saved.index_select(0, slots))
        self.forget()

    def forget(self) -> None:
        """Enqueue that no step was aborted, and that none is known: rounds may begin anew."""
        self._first_aborted.zero_()
        self._saved_in.zero_()


def _words(state: torch.Tensor) -> torch.Tensor:
    assert state.is_contiguous()
    return state.view(state.shape[0], -1).view(torch.int64)
