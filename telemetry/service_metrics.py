"""The Prometheus metrics of the coordinator's own work: HTTP, API keys and Redis."""

from telemetry.metric_factory import MetricFactory

_HTTP_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)


class HttpMetrics:
    """Metrics of the HTTP server, by ``route``; those of API keys by the ``key``'s name."""

    def __init__(self, make: MetricFactory) -> None:
        self.responses = make.counter(
            "baton_http_responses", "HTTP responses.", "route", "method", "status"
        )
        self.seconds = make.histogram(
            "baton_http_seconds", "From the HTTP request to its last byte.", _HTTP_S, "route"
        )
        self.in_flight = make.gauge("baton_http_in_flight", "HTTP requests open now.")
        self.evicted = make.counter(
            "baton_http_connections_evicted", "Idle connections closed for new ones at the limit."
        )
        self.key_requests = make.counter(
            "baton_key_requests", "POST requests with an API key.", "key", "outcome"
        )
        self.key_tokens = make.counter(
            "baton_key_tokens", "Prompt and output tokens of an API key.", "key"
        )


class RedisMetrics:
    """Metrics of the records in Redis."""

    def __init__(self, make: MetricFactory) -> None:
        self.connected = make.gauge("baton_redis_connected", "1 while Redis is connected.")
        self.records_unwritten = make.gauge(
            "baton_redis_records_unwritten", "Requests whose newest record Redis does not have yet."
        )
        self.writes_dropped = make.counter(
            "baton_redis_writes_dropped", "Records that were not written."
        )
        self.keys_replaced = make.counter(
            "baton_redis_keys_replaced",
            "Keys that another program had replaced, and that were written again.",
        )
        self.records_unreadable = make.counter(
            "baton_redis_records_unreadable", "Damaged records left out of answers."
        )
