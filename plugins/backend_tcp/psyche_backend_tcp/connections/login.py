"""The login inside TLS: proves both sides to each other. Pure functions over frames.

    server  -> hello    ["psyche", 2, service, run id, nonce, facts]
    client  -> login    ["psyche", 2, run id, public key, nonce, known, signature]
    server  -> welcome  [5, ping seconds, signature]   or   bye [4, code, sentence]

Nonces are 32 random bytes; `known` is the hash of the document that the client still has (or empty). Under the domain `tcp-login`
and the run id, both sign: their role, the service, the key that the server has proved in TLS, both nonces, the client's key and
`known`. So a signature is useless for another run, service, role or connection. It is also useless for a man in the middle: the
client signs the key of its TLS peer, and the real server sees that this is not its own key. The login names the client's run, so
that a wrong run can be distinguished from a wrong key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psyche_backend_tcp.limits import LOGIN_FRAME
from psyche_backend_tcp.protocol import VERSION, Bye, decode_server
from psyche_core.errors import WireError
from psyche_core.text_safety import printable
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.signing import SecretKey, verify

MAGIC = "psyche"
COORDINATOR = "coordinator"
DATA = "data"
NONCE_BYTES = 32
_DOMAIN = "tcp-login"
_CLIENT, _SERVER = "client", "server"


class LoginRefused(Exception):
    """The other side is not accepted. code: for programs; message: one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Hello:
    """The server's first frame. facts: what a client of the service must know before it logs in."""

    service: str
    run_id: str
    nonce: bytes
    facts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Login:
    """The client that logs in, and the values both sides sign. known: hash of the document it still has, or empty."""

    public: bytes
    nonce: bytes
    known: bytes = b""


def encode_hello(hello: Hello) -> bytes:
    """Return the hello as a frame."""
    return encode([MAGIC, VERSION, hello.service, hello.run_id, hello.nonce, dict(hello.facts)])


def decode_hello(payload: bytes, *, service: str) -> Hello:
    """Read the server's first frame. Raises LoginRefused unless it is a server of `service` with our version."""
    match _decode(payload, "server"):
        case ["psyche", version, *_] if version != VERSION:
            message = f"the server speaks version {version!r:.20} of the protocol, we speak {VERSION}; install matching releases"
            raise LoginRefused("VersionMismatch", message)
        case ["psyche", _, str() as found, str() as run_id, bytes() as nonce, dict() as facts] if (
            len(nonce) == NONCE_BYTES
            and 0 < len(run_id.encode()) <= 32
            and all(isinstance(key, str) and isinstance(value, int) for key, value in facts.items())
        ):
            if found != service:
                message = f"this is a {found} server, expected a {service} server; check the port"
                raise LoginRefused("WrongService", message)

            return Hello(found, run_id, nonce, facts)
        case [4, str(), str()]:
            bye = decode_server(payload)
            assert isinstance(bye, Bye)
            raise LoginRefused(printable(bye.code), printable(bye.sentence))
        case _:
            raise LoginRefused("NotPsyche", "the other side is not a Psyche server; check host and port")


def encode_login(hello: Hello, login: Login, key: SecretKey, *, run_id: str, server_key: bytes) -> bytes:
    """Return the login of a client that takes part in `run_id`. server_key: the key that the server proved in TLS."""
    signature = key.sign(_DOMAIN, run_id.encode(), _body(_CLIENT, hello, login, server_key))
    return encode([MAGIC, VERSION, run_id, login.public, login.nonce, login.known, signature])


def check_login(payload: bytes, hello: Hello, *, server_key: bytes) -> Login:
    """Return the verified login. Raises LoginRefused: VersionMismatch, BadLogin, WrongRun, BadSignature. server_key: our own."""
    match _decode(payload, "client"):
        case ["psyche", version, *_] if version != VERSION:
            message = f"the client speaks version {version!r:.20} of the protocol, we {VERSION}; install matching releases"
            raise LoginRefused("VersionMismatch", message)
        case [
            "psyche",
            _,
            str() as run_id,
            bytes() as public,
            bytes() as nonce,
            bytes() as known,
            bytes() as signature,
        ] if len(public) == 32 and len(nonce) == NONCE_BYTES and len(known) in (0, 32):
            if run_id != hello.run_id:
                message = (
                    f"this server coordinates the run {hello.run_id!r}, you asked for {run_id[:40]!r}; "
                    "check --run-id and --server-addr"
                )
                raise LoginRefused("WrongRun", message)

            login = Login(public, nonce, known)
            body = _body(_CLIENT, hello, login, server_key)
            if not verify(public, signature, domain=_DOMAIN, run=run_id.encode(), body=body):
                message = (
                    "the signature does not fit this connection: a wrong key, or somebody between you and the server; "
                    "check its address and KEY with its owner"
                )
                raise LoginRefused("BadSignature", message)

            return login
        case _:
            raise LoginRefused("BadLogin", "the login is malformed")


def sign_welcome(hello: Hello, login: Login, key: SecretKey) -> bytes:
    """Return the server's signature for the welcome, 64 bytes."""
    return key.sign(_DOMAIN, hello.run_id.encode(), _body(_SERVER, hello, login, key.public))


def check_welcome(signature: bytes, hello: Hello, login: Login, *, server_key: bytes) -> None:
    """Raise LoginRefused (BadServer) unless the holder of `server_key` took part in exactly this login."""
    body = _body(_SERVER, hello, login, server_key)
    if not verify(server_key, signature, domain=_DOMAIN, run=hello.run_id.encode(), body=body):
        raise LoginRefused("BadServer", "the server's signature does not fit this connection; do not trust it")


def _body(role: str, hello: Hello, login: Login, server_key: bytes) -> bytes:
    return encode([role, hello.service, server_key, hello.nonce, login.nonce, login.public, login.known])


def _decode(payload: bytes, who: str) -> Any:
    try:
        return decode(payload, max_bytes=LOGIN_FRAME)
    except WireError as error:
        message = f"the {who}'s first frame is not a login of this protocol: {error}"
        raise LoginRefused("NotPsyche" if who == "server" else "BadLogin", message) from error
