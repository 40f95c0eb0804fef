"""The server under test, as clients are told of it."""

from dataclasses import dataclass

import httpx

from tests.e2e.waiting import eventually

MODEL = "tiny"
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Api:
    """``url`` is without a path; OpenAI's clients want ``base``."""

    url: str

    @property
    def base(self) -> str:
        return f"{self.url}/v1"

    async def idle(self) -> None:
        """Wait until no request is queued or running, and all pages are free."""

        async def check() -> None:
            async with httpx.AsyncClient(timeout=5.0) as http:
                status = (await http.get(f"{self.url}/status")).json()
            assert (status["queued"], status["running"]) == (0, 0), status
            for worker in status["workers"]:
                assert worker["free_pages"] == worker["num_pages"], worker

        await eventually(check, "no request is open")
