"""Where prompts part is known, whichever worker computed them."""

from tests.coordinator.desk import Desk
from transport.wire.messages import Generate
from transport.wire.offers import PrefixesChanged


def test_the_second_prompt_that_begins_so_is_told_to_keep_a_state_where_it_goes_on_otherwise() -> (
    None
):
    desk = Desk(("b-1", "b-2"))
    for instance in ("b-1", "b-2"):
        desk.life.prefixes_changed(instance, PrefixesChanged())
    desk.sent()
    for name, length in (("first", 100), ("second", 70), ("third", 100)):
        desk.submit(name, length)
    orders = {m.request_id: (at, m) for at, m in desk.sent() if isinstance(m, Generate)}
    assert {at for at, _ in orders.values()} == {"b-1", "b-2"}
    boundaries = [orders[name][1].boundaries for name in ("first", "second", "third")]
    assert boundaries == [(), (64,), (96,)]
