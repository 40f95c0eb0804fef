"""How API keys are written down, and what a bad list is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.http.auth.api_keys import ApiKey, digest_of, owner, parse_api_keys

ALICE, BOB, EVE = (f"sk-{name}-0123456789abcdef" for name in ("alice", "bob", "eve"))
LIST = f"""
# who may ask
alice:{ALICE}
 bob:{BOB}:60:1000 , guest:{EVE}::5
"""


def test_lines_commas_comments_and_quotas() -> None:
    assert parse_api_keys(LIST, "KEYS") == (
        ApiKey("alice", digest_of(ALICE.encode())),
        ApiKey("bob", digest_of(BOB.encode()), 60, 1000),
        ApiKey("guest", digest_of(EVE.encode()), None, 5),
    )
    assert parse_api_keys("", "KEYS") == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{key}", "name must be"),
        ("alice", "is not name:key"),
        ("alice:short", "16 or more"),
        ("alice:{key} with spaces", "16 or more"),
        ("alice:{key}é", "16 or more"),
        ("al ice:{key}", "name must be"),
        (":{key}", "name must be"),
        ("alice:{key}:0", "quota"),
        ("alice:{key}:-1", "quota"),
        ("alice:{key}:1.5", "quota"),
        ("alice:{key}:1:2:3:4:5", "is not name:key"),
        ("alice:{key}:1:2:0", "the weight must be a number from 1 to 1000"),
        ("alice:{key}:::1001", "the weight"),
        ("alice:{key}:1:2:3:10", "the priority must be a number from 0 to 9"),
        ("alice:{key}::::-1", "the priority"),
        ("bob:{key}", "has the same name as line 1"),
        ("alice:{old}", "has the same key as line 1"),
    ],
)
def test_a_bad_line_is_named_and_its_key_is_not(line: str, why: str) -> None:
    entry = line.format(key=ALICE if line != "{key}" else ALICE * 4, old=BOB)
    with pytest.raises(ValueError, match=f"^KEYS: line 2: .*{why}") as refused:
        parse_api_keys(f"bob:{BOB}\n{entry}\n", "KEYS")
    assert ALICE not in str(refused.value)
    assert BOB not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_list_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^KEYS: lists no key"):
        parse_api_keys("# all commented out\n", "KEYS")


def test_no_key_is_kept() -> None:
    assert ALICE not in repr(parse_api_keys(LIST, "KEYS"))


@given(st.binary(max_size=64))
def test_only_a_key_has_an_owner(presented: bytes) -> None:
    keys = parse_api_keys(LIST, "KEYS")
    assert (owner(presented, keys) is None) == (
        presented not in {ALICE.encode(), BOB.encode(), EVE.encode()}
    )
    for name, key in (("alice", ALICE), ("bob", BOB), ("guest", EVE)):
        found = owner(key.encode(), keys)
        assert found is not None
        assert found.name == name
