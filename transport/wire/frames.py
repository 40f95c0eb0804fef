"""Encodes and decodes the frames of the channel: a frame is ``[protocol, payload]``.

The protocol is compared before the payload is decoded, so two versions always recognise each other,
whatever changed in the structs.
"""

from typing import TypeVar

import msgspec

from transport.wire.errors import MalformedMessage, ProtocolMismatch, WireError
from transport.wire.identities import instance_of
from transport.wire.messages import FromWorker, Hello, ToWorker

T = TypeVar("T")

_FROM_WORKER = msgspec.msgpack.Decoder(FromWorker)
_TO_WORKER = msgspec.msgpack.Decoder(ToWorker)


def from_worker(
    identity: bytes, frames: list[bytes], *, ours: bytes
) -> tuple[str, FromWorker | WireError]:
    """A worker's instance and its message, or a WireError if the bytes are no message. Does not
    raise."""
    instance = instance_of(identity)
    if instance is None:
        return repr(identity), MalformedMessage(f"identity {identity!r} has no instance id")
    try:
        payload = _payload(frames, peer=instance, ours=ours)
        message = _decode(_FROM_WORKER, payload, peer=instance)
    except WireError as error:
        return instance, error
    if isinstance(message, Hello) and message.instance != instance:
        named = message.instance[:64]
        return instance, MalformedMessage(f"from {instance}: it names instance {named!r}")
    return instance, message


def to_worker(frames: list[bytes], *, ours: bytes) -> ToWorker:
    """The coordinator's message; raises ProtocolMismatch or MalformedMessage, nothing else."""
    payload = _payload(frames, peer="the coordinator", ours=ours)
    message: ToWorker = _decode(_TO_WORKER, payload, peer="the coordinator")
    return message


def _payload(frames: list[bytes], *, peer: str, ours: bytes) -> bytes:
    if len(frames) != 2:
        raise MalformedMessage(f"{len(frames)} frames from {peer}, not 2")
    theirs, payload = frames
    if theirs != ours:
        raise ProtocolMismatch(
            ours=ours.decode(), theirs=theirs[:40].decode(errors="replace"), peer=peer
        )
    return payload


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes, *, peer: str) -> T:
    try:
        return decoder.decode(payload)
    # NOTE: msgspec raises UnicodeDecodeError and RecursionError for bad strings and deep nesting,
    # neither of them its own DecodeError. Decoding has no effects, so any failure is the sender's.
    except Exception as error:
        raise MalformedMessage(f"from {peer}: {error}") from error
