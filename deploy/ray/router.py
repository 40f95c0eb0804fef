"""Ray Serve's hook for routing: chooses the node for a request (ranking.py).

``DeploymentHandle.choose_replica`` passes its keyword arguments on to ``choose_replicas`` here:

- ``key``: the key of the conversation (conversation.py);
- ``open``: the caller's open requests, by node;
- ``avoid``: nodes that have refused this request;
- ``among``: the only nodes that may be chosen, if only these have what is asked for (records.py).

Readiness and open requests of each node come with its routing stats (node.py), some seconds old.
"""

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from deploy.ray.ranking import Choice, ranked


class ConversationRouter(RequestRouter):  # type: ignore[misc]
    """The router; ``max_lead`` of ``request_router_kwargs`` is that of ``ranked``."""

    def initialize_state(self, max_lead: int = 8) -> None:
        if max_lead < 1:
            raise ValueError(f"max_lead: must be at least 1 request, not {max_lead}")
        self._max_lead = max_lead

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        wanted: dict[str, Any] = {} if pending_request is None else pending_request.kwargs
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        for name in wanted.get("avoid", ()):
            if len(replicas) > 1:
                replicas.pop(name, None)
        if among := [name for name in wanted.get("among", ()) if name in replicas]:
            replicas = {name: replicas[name] for name in among}
        key = wanted.get("key") or self._spread(pending_request)
        opened = wanted.get("open", {})
        choices = [_choice(replica, opened.get(name, 0)) for name, replica in replicas.items()]
        return [[replicas[name]] for name in ranked(key, choices, self._max_lead)]

    def _spread(self, pending_request: PendingRequest | None) -> bytes:
        """A key for a request without a prompt, which may go to any node."""
        request_id = "" if pending_request is None else pending_request.metadata.internal_request_id
        return request_id.encode()[:64]


def _choice(replica: RunningReplica, num_open: int) -> Choice:
    stats = replica.routing_stats
    return Choice(
        replica.replica_id.unique_id,
        load=max(num_open, stats.get("open", 0)),
        ready=stats.get("ready", True),
    )
