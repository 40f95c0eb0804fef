"""The memory in which the members of a group exchange one layer's rows and results.

Members are workers of one node that compute decode steps together (engine/spread/kernels.py). Each
has one region of the same layout, mapped by all others, with a lane for every other generation of
the group:

    abort     int32: 0, or why this generation's steps are not valid
    late      int32 [members]: 1 where a member's rows did not come within the limit
    taking    a word: the lenders that take part in a step (engine/spread/triton_agree.py)
    offers    [members] words: of the first member, from the lenders that are in a step
    waited    uint32 [2, members]: ns that the own device waited for each one's rows and results
    inbox     [2, members] of 16-byte words: expert ids [max_rows, id words], routing weights
              [max_rows, weight words] and rows [max_rows, row words], as pushed
    returned  [max_rows, top_k + 1, hidden] float32: what the experts give for the member's own rows

*Inbox.* A word has 8 bytes of data and twice the flag of its use, so it is valid as soon as both
flags are those of the use, without a fence (NCCL's LL protocol). A flag is of a generation, a round
and a layer; its lowest bit is the buffer. Two buffers are enough: a member pushes the rows of layer
L + 2 after it has read every member's rows of layer L + 1, and those were pushed after their member
had read layer L.

*Returned.* EMPTY, a NaN that no arithmetic produces, marks what has not come; who reads a value
writes EMPTY back. One buffer is enough: others store results for a row only after the row's home
has pushed it, which it does after it has read and emptied all results of the layer before.

*Abort.* A member whose wait runs out sets the word of all members. It stays set, so steps launched
behind the aborted one are not valid either. A member that sees it stores no more into others'
memory: results that were computed from missing rows never leave the GPU, and a member that was put
out of the group stores nothing when its host goes on later. A member ``reset``s its lane before the
first step that all members have agreed on with no step under way.

The counts of *waited* only grow, modulo 2**32, and are read with each step's outcome. One program
of a launch counts for all of its programs: that of each member's first row, and that of the first
own row, which blames the member whose result was the last to come.

*Lenders* are the members behind the decoding ones. They have no rows, and take part in the steps
that they come to; of the others they take no notice. A lender pushes one row of padding to the
decoding members, and they push to it, so what was said of buffers holds for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.model.config import ModelConfig
from transport.wire.spread import MAX_MEMBERS, MAX_ROWS

EMPTY = -0x00004542
"""As float32 a NaN whose payload is not that of a computed NaN."""
WORD_BYTES = 16
HEADER_BYTES = 256
LANES = 2
MAX_USES = 1 << 28
"""Number of flags of a generation: 18 hours of steps of 10 ms with 40 layers. Then flags repeat; a
repeated flag can only be in an inbox where no row was pushed for all that time."""
NO_FLAG = -(1 << 30)
"""Before the first step: no word has it, and none the flags of the layers behind it."""
TAKING_PART, OFFERS, WAITED = 48, 64, 192
"""Offsets in bytes."""
PLACE, FLAG, LIMIT, NUM_DECODING, NUM_LENDERS, NUM_SHARING, TURN, MASK = range(8)
"""The places of ``Exchange.control``. Among those that share the step's experts ``TURN`` is the own
place, -1 in a step without this member; ``MASK`` has the bits of the lenders that take part."""
UNKNOWN_MEMBER = 1
"""Value of ``abort`` if a result from an unknown member did not come. Values from 2 on: 2 + the
member whose rows did not come."""


@dataclass(frozen=True)
class ExchangeLayout:
    """Sizes, the same for all members. ``max_rows`` is the most rows of one member; ``hidden`` and
    ``itemsize`` (bytes of a number) are those of a row."""

    max_rows: int
    top_k: int
    hidden: int
    itemsize: int = 2

    def __post_init__(self) -> None:
        assert self.top_k > 1, "two weights fill a word"
        assert self.top_k & (self.top_k - 1) == 0, self.top_k
        assert self.hidden * self.itemsize % 8 == 0, self.hidden

    @property
    def id_words(self) -> int:
        """Four expert ids of 16 bits a word."""
        return -(-self.top_k // 4)

    @property
    def weight_words(self) -> int:
        return self.top_k // 2

    @property
    def x_words(self) -> int:
        return self.hidden * self.itemsize // 8

    @property
    def row_bytes(self) -> int:
        return (self.id_words + self.weight_words + self.x_words) * WORD_BYTES

    @property
    def member_bytes(self) -> int:
        """Size of one member's part of an inbox."""
        return self.max_rows * self.row_bytes

    @property
    def weights_offset(self) -> int:
        """Bytes from the start of a member's part to its routing weights; expert ids come first,
        together, because every expert's program reads those of all rows."""
        return self.max_rows * self.id_words * WORD_BYTES

    @property
    def x_offset(self) -> int:
        """Bytes from the start of a member's part to its rows."""
        return self.weights_offset + self.max_rows * self.weight_words * WORD_BYTES

    @property
    def returned(self) -> int:
        """Offset in bytes."""
        return HEADER_BYTES + 2 * MAX_MEMBERS * self.member_bytes

    @property
    def lane_bytes(self) -> int:
        size = self.returned + self.max_rows * (self.top_k + 1) * self.hidden * 4
        return -(-size // HEADER_BYTES) * HEADER_BYTES

    @property
    def size_bytes(self) -> int:
        return LANES * self.lane_bytes

    def lane(self, generation: int) -> int:
        """Offset in bytes."""
        return generation % LANES * self.lane_bytes


def exchange_layout(config: ModelConfig) -> ExchangeLayout:
    """Layout for the rows of a model in bfloat16."""
    return ExchangeLayout(MAX_ROWS, config.moe.num_experts_per_tok, config.hidden_size)


def first_flag(generation: int, round_: int, num_layers: int) -> int:
    """LL flag of layer 0 in one step, in (0, 2**31). Layer ``i`` uses ``first_flag + i``.

    ``num_layers`` is even: whatever rounds are left out, each use has the other buffer than the one
    before.
    """
    assert num_layers % 2 == 0, num_layers
    return (generation % 6 + 1) * MAX_USES + round_ * num_layers % MAX_USES


class Exchange:
    """A member's own memory, and what its kernels read of its place in the group: graphs captured
    once serve every generation, whatever its number of members.

    ``addresses`` int64 [MAX_MEMBERS] on the device: where this process has mapped each member's
    lane, its own included. ``control`` int64 [8]: its own place, the first flag of the step, the
    longest wait in ns, how many members decode and lend, and what is agreed on in each step.
    """

    def __init__(self, layout: ExchangeLayout, memory: torch.Tensor) -> None:
        """``memory`` uint8 [layout.size_bytes], to be mapped by others. Until a group is joined,
        steps run through without waiting, so that they can be captured."""
        assert memory.dtype == torch.uint8
        assert memory.numel() >= layout.size_bytes
        # NOTE: cudaMalloc aligns as much; shared memory of the CPU lies at a page.
        assert memory.data_ptr() % HEADER_BYTES == 0
        self.layout = layout
        self._memory = memory
        self.addresses = torch.zeros(MAX_MEMBERS, dtype=torch.int64, device=memory.device)
        self.control = torch.zeros(8, dtype=torch.int64, device=memory.device)
        self.withdraw()

    def join(
        self,
        generation: int,
        addresses: Sequence[int],
        place: int,
        *,
        num_lenders: int = 0,
        limit_s: float,
    ) -> None:
        """Be the member ``place`` of a generation, whose members' memory is at ``addresses``; the
        last ``num_lenders`` of them have no rows. No step is under way, and no member launches one
        before all have joined."""
        num_decoding = len(addresses) - num_lenders
        assert num_decoding > 0
        assert 0 <= place < len(addresses) <= MAX_MEMBERS
        assert addresses[place] == self._memory.data_ptr(), "the own memory, where it is"
        lane = self.layout.lane(generation)
        lanes = [address + lane for address in addresses]
        limit_ns, turn = int(limit_s * 1e9), place if place < num_decoding else -1
        control = [place, NO_FLAG, limit_ns, num_decoding, num_lenders, num_decoding, turn, 0]
        self.addresses[: len(lanes)] = torch.tensor(lanes, dtype=torch.int64)
        self.control.copy_(torch.tensor(control, dtype=torch.int64))
        self._lane = self._memory[lane : lane + self.layout.lane_bytes].zero_()
        self.reset()

    def withdraw(self) -> None:
        """Be in no group: steps run through, with no other memory than the own one."""
        self.join(0, [self._memory.data_ptr()], 0, limit_s=0.0)
        self.header[0] = UNKNOWN_MEMBER

    def reset(self) -> None:
        """Enqueue, before a step that all members have agreed on with none under way: nothing is
        aborted, and no result has come."""
        self.header.zero_()
        self.returned.fill_(EMPTY)

    def begin_step(self, flag: int) -> None:
        """Enqueue what makes the next step's layers use the flags from ``flag`` on."""
        host = torch.tensor([flag], dtype=torch.int64)
        if self.control.is_cuda:
            host = host.pin_memory()
        self.control[FLAG : FLAG + 1].copy_(host, non_blocking=True)

    @property
    def state(self) -> torch.Tensor:
        """What the host reads behind a step, int32: ``header`` first, ``waited`` last."""
        return self._lane[:HEADER_BYTES].view(torch.int32)

    @property
    def waited(self) -> torch.Tensor:
        """int32 [2, MAX_MEMBERS], as of uint32."""
        return self.state[WAITED // 4 :].view(2, MAX_MEMBERS)

    @property
    def header(self) -> torch.Tensor:
        """``abort`` and ``late``, int32 [1 + MAX_MEMBERS]."""
        return self.state[: 1 + MAX_MEMBERS]

    @property
    def returned(self) -> torch.Tensor:
        """int32 [max_rows, top_k + 1, hidden]."""
        layout = self.layout
        values = self._lane[layout.returned :].view(torch.int32)
        shape = layout.max_rows, layout.top_k + 1, layout.hidden
        return values[: torch.Size(shape).numel()].view(shape)
