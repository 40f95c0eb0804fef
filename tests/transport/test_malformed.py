"""Whatever bytes come over the channel, either end names what is wrong and goes on."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.received import received
from transport.wire.channel import CoordinatorChannel, WorkerChannel, from_worker, to_worker
from transport.wire.errors import MalformedMessage, ProtocolMismatch, WireError
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import (
    PROTOCOL,
    Alive,
    Cancel,
    Decode,
    DropPrefix,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    PeerJoined,
    PeerTested,
    Prefilled,
    Targets,
    TokenOut,
    Tokens,
    TransferDone,
    Welcome,
    encode,
)
from transport.wire.offers import KeptPrefix, Offer, PrefixesChanged, PrefixName
from transport.wire.prompt_logprobs import PromptLogprobs
from transport.wire.reports import DraftCounts, WorkerGauges
from transport.wire.sampling import SamplingParams, StopRule

OURS = PROTOCOL.encode()
EXPORT = MemoryExport("shm", "h", 1, CacheLayout("float32", 16, *[1] * 9), PoolSize(8, 8))
OFFER = Offer("p-1", (0, 3), 2, 7, 20)
KEY = bytes(range(16))
PREFIX = PrefixName(bytes(16), KEY, 20)
FROM_WORKERS = [
    Hello("p-1", "prefill", "m", "cpu", 1, 64, 4, EXPORT),
    Heartbeat(WorkerGauges(8, 8), (("r", 1),)),
    Heartbeat(WorkerGauges(8, 8, drafts=DraftCounts(9, (4, 3), (3, 1), 2))),
    PromptLogprobs("r", 1, 1, bytes(16)),
    Prefilled(TokenOut("r", 1, 0, 42), OFFER, 0.5, 0.25),
    TransferDone("r", 1, 4096, copy_s=0.125),
    Tokens((TokenOut("r", 1, 1, 42), TokenOut("s", 1, 9, 7, finish="stop"))),
    Failed("r", 1, "stale_offer", "why", True),
    Failed("r", 1, "not_finite", "why", True, PREFIX),
    PeerTested("p-1", 1, 1.0),
    PrefixesChanged((KeptPrefix(KEY, KEY, 16, OFFER, (KEY,)),), (KEY,)),
    Goodbye(unfit="why"),
]
TO_WORKERS = [
    Welcome("c", 1.0, 5.0, Targets(2.0, 0.05)),
    Alive("c"),
    PeerJoined("p-1", EXPORT),
    Decode("r", 1, 1, bytes(8), 2, SamplingParams(), StopRule(4), offer=OFFER),
    Cancel("r", 1),
    DropPrefix(PREFIX),
]
NO_UTF8 = b"\x82\xa4type\xa7goodbye\xa5unfit\xa1\xff"
UNKNOWN_FIELD = b"\x82\xa1x%s\xa4type\xa7goodbye"
HOSTILE = [
    b"",
    NO_UTF8,
    NO_UTF8.replace(b"goodbye", b"welcome"),
    b"\x82\xa4type\xa7goodbye\xa1\xff\xc3",
    b"\x81\xa4type\xa1\xff",
    UNKNOWN_FIELD % (b"\x91" * 100_000 + b"\xc0"),
    UNKNOWN_FIELD % (b"\x81\xa1k" * 100_000 + b"\xc0"),
    b"\x91" * 100_000,
    b"\x82\xa4type\xa9heartbeat\xa4held\xdd\xff\xff\xff\xff",
    b"\x82\xa4type\xa7prefill\xa9token_ids\xc6\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\x82\xa4type\xa7goodbye\xa5unfit\xdb\xff\xff\xff\xff",
    b"\x82\xa4type\xa7goodbye\xa5unfit\xd7\xff" + b"\xff" * 8,
    encode(Goodbye()) + b"trailing",
]
IMPLAUSIBLE = [
    {"max_seq_len": 0},
    {"max_running": -1},
    {"max_seq_len": 2**64 - 1},
    {"memory": EXPORT.__class__("shm", "h", 0, EXPORT.layout, EXPORT.pools)},
    {"memory": EXPORT.__class__("shm", "h", 1, EXPORT.layout, PoolSize(0, 8))},
    {"memory": EXPORT.__class__("shm", "h", 1, EXPORT.layout, PoolSize(8, -8))},
    {"instance": "p-2"},
]


@st.composite
def damaged(draw: st.DrawFn, messages: list[Any]) -> bytes:
    """A message's bytes with some cut out, changed, or put in."""
    payload = bytearray(encode(draw(st.sampled_from(messages))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(payload)))
        payload[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(payload)


def frames(payload: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """One message's frames; mostly two, the first of them the protocol."""
    ours = st.tuples(st.just(OURS), payload).map(list)
    return st.one_of(ours, ours, ours, st.lists(st.one_of(st.just(OURS), payload), max_size=4))


ODD = [None, True, -1, 2**64 - 1, 1.5, float("nan"), "", "p-1", b"\xff", [], [[]], [1, "two"], {}]


def payloads(messages: list[Any]) -> st.SearchStrategy[bytes]:
    tags = st.sampled_from([type(m).__struct_config__.tag for m in messages])
    keys = st.sampled_from(sorted({key for m in messages for key in m.__struct_fields__}))
    fields = st.dictionaries(keys, st.sampled_from(ODD), max_size=4)
    made = st.builds(lambda tag, rest: msgspec.msgpack.encode({"type": tag} | rest), tags, fields)
    return st.one_of(damaged(messages), made, st.binary(max_size=20))


@settings(max_examples=100, deadline=None)
@given(
    identity=st.one_of(st.just(b"p-1"), st.binary(min_size=1, max_size=255)),
    frames=frames(payloads(FROM_WORKERS)),
)
def test_any_frame_from_a_worker_is_a_message_or_an_error(
    identity: bytes, frames: list[bytes]
) -> None:
    instance, message = from_worker(identity, frames, ours=OURS)
    assert instance.isprintable()
    if not isinstance(message, WireError):
        assert type(message) in {type(known) for known in FROM_WORKERS}


@settings(max_examples=100, deadline=None)
@given(frames=frames(payloads(TO_WORKERS)))
def test_any_frame_from_the_coordinator_is_a_message_or_an_error(frames: list[bytes]) -> None:
    with suppress(MalformedMessage, ProtocolMismatch):
        assert type(to_worker(frames, ours=OURS)) in {type(known) for known in TO_WORKERS}


def test_token_ids_that_end_within_an_id_are_malformed() -> None:
    order = encode(TO_WORKERS[3]).replace(b"\xc4\x08" + bytes(8), b"\xc4\x07" + bytes(7))
    with pytest.raises(MalformedMessage, match="7 bytes end within an id"):
        to_worker([OURS, order], ours=OURS)


@pytest.mark.parametrize("message", FROM_WORKERS)
def test_messages_pass(message: Any) -> None:
    assert from_worker(b"p-1", [OURS, encode(message)], ours=OURS) == ("p-1", message)


@pytest.mark.parametrize("changes", [{"key": bytes(15)}, {"pages_key": ""}, {"num_tokens": 0}])
def test_a_prefix_to_be_dropped_has_whole_keys_and_tokens(changes: dict[str, Any]) -> None:
    order = encode(DropPrefix(PREFIX))
    assert to_worker([OURS, order], ours=OURS) == DropPrefix(PREFIX)
    order = encode(DropPrefix(msgspec.structs.replace(PREFIX, **changes)))
    with pytest.raises(MalformedMessage):
        to_worker([OURS, order], ours=OURS)


@pytest.mark.parametrize("payload", HOSTILE)
def test_hostile_payloads_are_malformed(payload: bytes) -> None:
    assert isinstance(from_worker(b"p-1", [OURS, payload], ours=OURS)[1], MalformedMessage)
    with pytest.raises(MalformedMessage):
        to_worker([OURS, payload], ours=OURS)


@pytest.mark.parametrize("changes", IMPLAUSIBLE)
def test_numbers_that_would_reach_others_are_malformed(changes: dict[str, Any]) -> None:
    hello = msgspec.structs.replace(FROM_WORKERS[0], **changes)
    assert isinstance(from_worker(b"p-1", [OURS, encode(hello)], ours=OURS)[1], MalformedMessage)


@pytest.mark.parametrize("positions", [([4, 3], [3]), ([4], [-1]), ([1] * 17, [1] * 17)])
def test_counts_of_drafts_are_by_position(positions: tuple[list[int], list[int]]) -> None:
    beat = msgspec.msgpack.decode(encode(Heartbeat(WorkerGauges(8, 8))))
    beat["gauges"]["drafts"] = dict(zip(("verified", "accepted"), positions, strict=True))
    payload = msgspec.msgpack.encode(beat)
    assert isinstance(from_worker(b"p-1", [OURS, payload], ours=OURS)[1], MalformedMessage)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1e300])
def test_durations_are_finite(seconds: float) -> None:
    landed = encode(TransferDone("r", 1, 4096, copy_s=seconds))
    assert isinstance(from_worker(b"p-1", [OURS, landed], ours=OURS)[1], MalformedMessage)


@pytest.mark.parametrize(
    "identity", [b"\x00\x01\x02\x03\x04", b"a\nb", b"\xff", b"x" * 65, b"../p"]
)
def test_an_identity_that_is_no_instance_id_is_malformed(identity: bytes) -> None:
    instance, error = from_worker(identity, [OURS, encode(Goodbye())], ours=OURS)
    assert isinstance(error, MalformedMessage)
    assert instance == repr(identity)


async def test_a_worker_drops_what_it_cannot_read_and_counts_it() -> None:
    context = zmq.asyncio.Context()
    coordinator = context.socket(zmq.ROUTER)
    port = coordinator.bind_to_random_port("tcp://127.0.0.1")
    worker = WorkerChannel(f"tcp://127.0.0.1:{port}", "p-1")
    worker.send(Goodbye())
    identity, *_ = await asyncio.wait_for(coordinator.recv_multipart(), 5.0)
    for payload in HOSTILE:
        await coordinator.send_multipart([identity, OURS, payload])
    await coordinator.send_multipart([identity, b"one frame"])
    await coordinator.send_multipart([identity, OURS, encode(Alive("c"))])
    got: list[object] = []
    async with asyncio.timeout(5.0):
        while not got:
            got += await asyncio.to_thread(worker.receive, 1.0)
    assert got == [Alive("c")]
    assert worker.malformed_dropped == len(HOSTILE) + 1
    worker.close()
    coordinator.close(linger=0)
    context.term()


async def test_a_frame_beyond_the_limit_closes_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transport.wire.channel.MAX_FRAME_BYTES", 1000)
    coordinator = CoordinatorChannel("tcp://127.0.0.1:*")
    context = zmq.asyncio.Context()
    workers = {}
    for name in ("bad", "good"):
        workers[name] = context.socket(zmq.DEALER)
        workers[name].setsockopt(zmq.IDENTITY, name.encode())
        workers[name].connect(coordinator.endpoint)
        await workers[name].send_multipart([OURS, encode(Goodbye())])
        assert await received(coordinator) == (name, Goodbye())
    await workers["bad"].send_multipart([OURS, random.Random(1).randbytes(100_000)])
    await workers["good"].send_multipart([OURS, encode(Goodbye(draining=True))])
    assert await received(coordinator) == ("good", Goodbye(draining=True))
    for socket in workers.values():
        socket.close(linger=0)
    context.term()
    coordinator.close()
