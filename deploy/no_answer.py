"""What ``baton status``, ``top`` and ``chat`` say when nothing answers at their URL."""

from coordinator.record.redis_url import safe_url

DEFAULT_URL = "http://127.0.0.1:8000"


def no_answer(url: str, error: Exception) -> str:
    """Without a password that the URL may hold."""
    return f"no answer from {safe_url(url)}: {error}; --url or BATON_URL says where Baton listens"
