"""Scripts run by a plain client, without the store."""

from typing import Any

from redis import Redis

from coordinator.record import scripts
from coordinator.record.scripts import Command


def load(redis: Redis) -> None:
    """Make the server know every script."""
    for source in scripts.SOURCES:
        redis.script_load(source)


def run(redis: Redis, command: Command) -> Any:
    """The script's answer; it may have found no key of another type."""
    answer, replaced = redis.execute_command(*command)
    assert replaced == []
    return answer
