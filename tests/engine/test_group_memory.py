"""Which groups a worker joins by the graphs that it has."""

import pytest
import torch

from engine.spread.group_memory import GroupMemory
from engine.spread.interface import MemberUnreachable
from engine.spread.memory import ExchangeLayout
from tests.kernels.spread.spread_group import Memory

LAYOUT = ExchangeLayout(max_rows=2, top_k=2, hidden=8)


@pytest.mark.parametrize(
    ("place", "num_lenders", "parted_from"), [(0, 0, 2), (2, 0, 1), (1, 1, 2), (3, 2, None)]
)
def test_a_group_with_more_decoding_members_than_there_are_graphs_for_is_not_joined(
    place: int, num_lenders: int, parted_from: int | None
) -> None:
    group = GroupMemory(LAYOUT, Memory(torch.device("cpu")), int, lambda address: None, 2)
    own = int(group.export.handle)
    handles = [str(own if i == place else own + 256 * (i + 1)) for i in range(4)]
    if parted_from is None:
        group.join(7, place, handles, num_lenders, limit_s=1.0)
        assert group.num_decoding == 2
        return
    with pytest.raises(MemberUnreachable, match="graphs for at most 2 decoding members") as raised:
        group.join(7, place, handles, num_lenders, limit_s=1.0)
    assert raised.value.rank == parted_from
    assert not group.num_decoding
