"""What a worker counts as it goes, against what its requests add up to."""

from coordinator.core.request import State
from coordinator.core.workers.worker import Worker


def assert_counted(worker: Worker) -> None:
    there = worker.load.requests.values()
    pages = (worker.layout.pages_for(request.num_tokens + 1) for request in there)
    assert worker.load.num_pages_assigned == sum(pages)
    computing = [r for r in there if r.state is State.PREFILLING]
    assert worker.load.tokens_ahead == sum(r.num_tokens - r.num_expected for r in computing)
    assert worker.load.num_prompts == len(computing)
    assert worker.load.pending_prefixes.requests <= {r.request_id for r in computing}
