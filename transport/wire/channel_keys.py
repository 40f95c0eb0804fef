"""The CURVE keys of the channel, which both ends derive from one shared secret.

    secret key of an end = BLAKE2b-256(secret, person = "baton/<end>")    (clamped by Curve25519)
    public key           = Curve25519(secret key, base point)

So one setting configures everything: both ends prove that they know the secret (a worker by the one
public key that the coordinator accepts), and all traffic is encrypted and authenticated
(https://rfc.zeromq.org/spec/26/). The derivation does not slow down an attacker who guesses, so the
secret must be random: make it with ``openssl rand -hex 32``.

A process that has the secret can act as either end: workers are not protected from each other.
"""

import hashlib
from dataclasses import dataclass, field
from ipaddress import ip_address

import zmq
from zmq.utils import z85

from transport.wire.secret_setting import CHANNEL_SECRET

MIN_SECRET_LEN = 32


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair in Z85, as ZeroMQ takes it."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class ChannelKeys:
    """The key pairs of both ends; each end has both."""

    coordinator: KeyPair
    worker: KeyPair


def channel_keys(secret: str) -> ChannelKeys | None:
    """The keys derived from ``secret``; None for "": the channel is then open.

    Raises ValueError, which does not show the secret, when it is too short to be random.
    """
    if not secret:
        return None
    if len(secret) < MIN_SECRET_LEN:
        raise ValueError(
            f"{CHANNEL_SECRET}: has {len(secret)} characters, needs at least {MIN_SECRET_LEN} "
            "random ones, e.g. from: openssl rand -hex 32"
        )
    if not zmq.has("curve"):
        raise ValueError(
            f"{CHANNEL_SECRET}: this build of ZeroMQ has no CURVE; install pyzmq's wheel"
        )
    return ChannelKeys(_pair(secret, b"baton/coord"), _pair(secret, b"baton/worker"))


def require_keys(setting: str, endpoint: str, keys: ChannelKeys | None) -> None:
    """Raise ValueError, which names ``setting``, unless there are keys or ``endpoint`` is a socket
    file or a loopback address: other machines must not reach an open channel."""
    if keys is None and not _stays_here(endpoint):
        raise ValueError(
            f"{setting}: {endpoint} can be reached from other machines, where any process could "
            f"join as a worker and read prompts; set {CHANNEL_SECRET} (or {CHANNEL_SECRET}_FILE), "
            "the same for the coordinator and all workers"
        )


def _pair(secret: str, end: bytes) -> KeyPair:
    digest = hashlib.blake2b(secret.encode(), digest_size=32, person=end).digest()
    key = z85.encode(digest)
    return KeyPair(zmq.curve_public(key), key)


def is_loopback(host: str) -> bool:
    """True if only this machine reaches ``host``, an address or a name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # another name, an interface, or "*"


def _stays_here(endpoint: str) -> bool:
    scheme, _, address = endpoint.partition("://")
    if scheme in ("ipc", "inproc"):
        return True
    return scheme == "tcp" and is_loopback(address.rpartition(":")[0].strip("[]"))
