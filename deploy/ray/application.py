"""Baton as an application of Ray Serve: ``serve run deploy/ray/serve.yaml``.

Ray's proxies take HTTP requests, ``Ingress`` chooses a node for each, and each replica of ``Node``
is one node's stack. The settings here fit every cluster; the YAML file has those that differ.
"""

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application

from deploy.ray.ingress import Ingress
from deploy.ray.node import Node
from deploy.ray.settings import STOP_S, node_settings

ROUTER = "deploy.ray.router:ConversationRouter"
# Nodes queue requests themselves, and refuse those beyond BATON_MAX_OPEN by a 503 of their own.
_MAX_OPEN = 65_536
_STATS_EVERY_S = 2.0
_HEALTH_EVERY_S = 5.0
_HEALTH_TIMEOUT_S = 15.0
_DESTROY_S = 20.0
"""Time for a node to ask its stack for a sign of life, and to kill it if it does not end."""


def build(arguments: Mapping[str, Any]) -> Application:
    """Build the application. Raises ValueError that names the argument."""
    settings = node_settings(arguments)
    drain_s = settings.drain_s + STOP_S + _DESTROY_S
    nodes = serve.deployment(
        Node,
        name="Node",
        max_ongoing_requests=_MAX_OPEN,
        health_check_period_s=_HEALTH_EVERY_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=drain_s,
        graceful_shutdown_wait_loop_s=1.0,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER, request_routing_stats_period_s=_STATS_EVERY_S
        ),
    )
    ingress = serve.deployment(
        Ingress,
        name="Ingress",
        max_ongoing_requests=_MAX_OPEN,
        graceful_shutdown_timeout_s=drain_s,
        graceful_shutdown_wait_loop_s=1.0,
    )
    return ingress.bind(nodes.bind(settings))
