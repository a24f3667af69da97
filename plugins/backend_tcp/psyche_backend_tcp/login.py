"""The login: what proves who a client is, as pure functions over frames.

    server  -> hello    ["psyche", 1, service, run id, address, challenge, facts]
    client  -> login    ["psyche", 1, run id, public key, signature]
    server  -> welcome  [5, ping seconds]   or   bye [4, code, sentence]

The challenge is 32 random bytes. The signature covers, under the domain `tcp-login` and the run id, the challenge, the service
(coordinator or data) and the address the server claims: it is worth nothing for another run, service, server or connection.
Decided: the login names the client's run, so that a wrong run is told apart from a wrong key. Refuses to authenticate the server:
there is no TLS here; whoever needs it puts the connection into a tunnel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psyche_backend_tcp.limits import LOGIN_FRAME
from psyche_backend_tcp.protocol import VERSION, Bye, decode_server
from psyche_core.errors import WireError
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.signing import SecretKey, verify

MAGIC = "psyche"
COORDINATOR = "coordinator"
DATA = "data"
CHALLENGE_BYTES = 32
_DOMAIN = "tcp-login"


class LoginRefused(Exception):
    """The other side cannot be accepted. code: for programs; message: one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Hello:
    """What a server says first. facts: what a client of the service needs to know before it decides to log in."""

    service: str
    run_id: str
    address: str
    challenge: bytes
    facts: Mapping[str, int] = field(default_factory=dict)


def encode_hello(hello: Hello) -> bytes:
    """The hello as a frame."""
    return encode([MAGIC, VERSION, hello.service, hello.run_id, hello.address, hello.challenge, dict(hello.facts)])


def decode_hello(payload: bytes, *, service: str) -> Hello:
    """Read the server's first frame. Raises LoginRefused when it is no server of `service` that we can talk to."""
    match _decode(payload, "server"):
        case ["psyche", version, *_] if version != VERSION:
            message = f"the server speaks version {version} of the protocol, we speak {VERSION}; install matching releases"
            raise LoginRefused("WrongVersion", message)
        case ["psyche", _, str() as found, str() as run_id, str() as address, bytes() as challenge, dict() as facts] if (
            len(challenge) == CHALLENGE_BYTES
            and 0 < len(run_id.encode()) <= 32
            and all(isinstance(key, str) and isinstance(value, int) for key, value in facts.items())
        ):
            if found != service:
                message = f"this is a {found} server, expected a {service} server; check the port"
                raise LoginRefused("WrongService", message)

            return Hello(found, run_id, address, challenge, facts)
        case [4, str(), str()]:
            bye = decode_server(payload)
            assert isinstance(bye, Bye)
            raise LoginRefused(bye.code, bye.sentence)
        case _:
            raise LoginRefused("NotPsyche", "the other side is not a Psyche server; check host and port")


def _body(hello: Hello, public: bytes) -> bytes:
    return encode([hello.challenge, hello.service, hello.address, public])


def encode_login(hello: Hello, key: SecretKey, *, run_id: str) -> bytes:
    """The answer of a client that takes part in `run_id`."""
    signature = key.sign(_DOMAIN, run_id, _body(hello, key.public))
    return encode([MAGIC, VERSION, run_id, key.public, signature])


def check_login(payload: bytes, hello: Hello) -> bytes:
    """The public key that has proved itself. Raises LoginRefused: WrongVersion, BadLogin, WrongRun, BadSignature."""
    match _decode(payload, "client"):
        case ["psyche", version, *_] if version != VERSION:
            message = f"the client speaks version {version} of the protocol, this server speaks {VERSION}"
            raise LoginRefused("WrongVersion", message)
        case ["psyche", _, str() as run_id, bytes() as public, bytes() as signature] if len(public) == 32:
            if run_id != hello.run_id:
                message = f"this server coordinates the run {hello.run_id!r}, you asked for {run_id[:40]!r}"
                raise LoginRefused("WrongRun", message)

            if not verify(public, signature, domain=_DOMAIN, run_id=run_id, body=_body(hello, public)):
                raise LoginRefused("BadSignature", "the signature does not answer this connection's challenge")

            return public
        case _:
            raise LoginRefused("BadLogin", "the login is malformed")


def _decode(payload: bytes, who: str) -> Any:
    try:
        return decode(payload, max_bytes=LOGIN_FRAME)
    except WireError as error:
        message = f"the {who}'s first frame is not a login of this protocol: {error}"
        raise LoginRefused("NotPsyche" if who == "server" else "BadLogin", message) from error
