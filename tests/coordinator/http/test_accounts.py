"""Whose request it is, and what a key has left between its admission and its submission."""

import pytest

from coordinator.http.auth.accounts import Accounts, account_of, open_account
from coordinator.http.auth.api_keys import parse_api_keys
from coordinator.http.errors import ApiError
from telemetry.metrics import Metrics

KEY = "sk-small-0123456789abcdef"


@pytest.fixture
def accounts() -> Accounts:
    return Accounts(parse_api_keys(f"small:{KEY}:10:5", "KEYS"), Metrics("tiny"), lambda: 0.0)


def test_many_at_once_do_not_share_the_last_token(accounts: Accounts) -> None:
    """All are admitted before one is charged; those that were not yet submitted are stopped."""
    account = accounts.of(KEY.encode())
    assert account is not None
    account.admit()
    account.admit()
    account.check_tokens()
    account.charge(1_000)
    with pytest.raises(ApiError, match="5 tokens a minute") as refused:
        account.check_tokens()
    assert refused.value.status == 429
    assert refused.value.headers["retry-after"] == str((1_000 - 5 + 1) * 12)


def test_a_scope_without_an_account_is_charged_to_none(accounts: Accounts) -> None:
    scope: dict[str, object] = {}
    assert account_of(scope).name == ""
    account = accounts.of(KEY.encode())
    assert account is not None
    open_account(scope, account)
    assert account_of(scope) is account
    assert accounts.of(b"") is None
