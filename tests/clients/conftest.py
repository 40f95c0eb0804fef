"""Real clients, unchanged, against one real stack with the bundled model.

Where BATON_CLIENTS_URL names a server, that one is used: tests/clients/run.py runs the tests of
packages that exclude each other in several environments, and not all of these can start a stack.
"""

import os
from collections.abc import Iterator

import openai
import pytest

from tests.clients.api import TIMEOUT_S, Api


@pytest.fixture(scope="package")
def api() -> Iterator[Api]:
    if url := os.environ.get("BATON_CLIENTS_URL"):
        yield Api(url)
        return
    from tests.e2e.conftest import ending_well
    from tests.e2e.served import TINY
    from tests.e2e.stack import Stack

    with ending_well(Stack(TINY)) as stack:
        yield Api(stack.url)


@pytest.fixture
def client(api: Api) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=api.base, api_key="none", timeout=TIMEOUT_S, max_retries=0) as made:
        yield made
