"""The proof that a connection needs while places before the login are scarce: it solved a puzzle, or holds a member's key.

    server  -> challenge   b"psyche?" version(1) cookie(33)        in the clear, instead of TLS; then it closes
    client  -> proof       b"psyche!" version(1) cookie(33) counter(8) key(32) signature(64)
                                                                   on a new connection; TLS follows at once

The cookie needs no memory on the server: bits(1), expiry in milliseconds of the server's own clock (8), 8 random bytes, and the
first 16 bytes of an HMAC-SHA-256 of those under a secret of this listener. It is solved when SHA-256(cookie || counter) begins
with that many zero bits. The signature is of the cookie, under the domain `tcp-entry`.

TCP has already proved the address, so a cookie alone would cost an attacker nothing; work does. The puzzle is a plain hash,
because a memory-hard one costs the server as much to check as the client to solve. Graphics cards solve it a thousand times
faster; therefore more bits win over fewer (`admission`), and members need not compete at all. A cookie admits one connection:
used cookies are remembered until they expire, up to a limit.

The client signs and solves without knowing whether it counts as a member. Only in this case is its key sent unencrypted. A man in
the middle that relays a signature takes a member's place for one connection, until the member itself takes it back; the login is
bound to TLS. A client does not solve puzzles of more than `MOST_BITS` bits, because otherwise any server could keep it busy.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from psyche_core.errors import WireError
from psyche_core.wire.signing import SecretKey, verify

_VERSION = 1
CHALLENGE_MAGIC = b"psyche?" + bytes([_VERSION])
PROOF_MAGIC = b"psyche!" + bytes([_VERSION])
COOKIE_BYTES = 33
CHALLENGE_BYTES = len(CHALLENGE_MAGIC) + COOKIE_BYTES
PROOF_BYTES = len(PROOF_MAGIC) + COOKIE_BYTES + 8 + 32 + 64

MOST_BITS = 22
"""Hardest puzzle a client solves: four million hashes on average, about three seconds of one core in Python."""

COOKIE_SECONDS = 60.0
"""Time to solve a cookie and connect again."""

REMEMBERED_COOKIES = 65_536
_DOMAIN = "tcp-entry"


@dataclass(frozen=True, slots=True)
class Proof:
    """A client's proof. cookie: 33 bytes; counter: below 2**64; public: the client's key, 32 bytes; signature: 64 bytes."""

    cookie: bytes
    counter: int
    public: bytes
    signature: bytes

    @property
    def bits(self) -> int:
        """The difficulty of the puzzle, 0 if the counter does not solve it."""
        return self.cookie[0] if solves(self.cookie, self.counter) else 0

    @property
    def signed(self) -> bool:
        """Whether the holder of the key signed the cookie."""
        return verify(self.public, self.signature, domain=_DOMAIN, run=b"", body=self.cookie)


def encode_challenge(cookie: bytes) -> bytes:
    """Return the server's challenge."""
    return CHALLENGE_MAGIC + cookie


def decode_challenge(data: bytes) -> bytes:
    """Return the cookie of a challenge. Raises WireError for any other data or version, or if the puzzle is too hard."""
    if len(data) != CHALLENGE_BYTES or not data.startswith(CHALLENGE_MAGIC):
        message = "the server sent neither TLS nor a known challenge; check host and port, or install matching releases"
        raise WireError(message)

    cookie = data[len(CHALLENGE_MAGIC) :]
    if cookie[0] > MOST_BITS:
        message = f"the server asks for a puzzle of {cookie[0]} bits, we solve at most {MOST_BITS}"
        raise WireError(message)

    return cookie


def encode_proof(proof: Proof) -> bytes:
    """Return the bytes that the client sends before TLS."""
    return PROOF_MAGIC + proof.cookie + proof.counter.to_bytes(8, "big") + proof.public + proof.signature


def decode_proof(data: bytes) -> Proof:
    """Read a proof. Raises WireError."""
    if len(data) != PROOF_BYTES or not data.startswith(PROOF_MAGIC):
        message = f"a proof has {PROOF_BYTES} bytes of version {_VERSION}, got {len(data)} bytes"
        raise WireError(message)

    rest = data[len(PROOF_MAGIC) :]
    cookie, rest = rest[:COOKIE_BYTES], rest[COOKIE_BYTES:]
    return Proof(cookie, int.from_bytes(rest[:8], "big"), rest[8:40], rest[40:])


def prove(cookie: bytes, key: SecretKey) -> Proof:
    """Sign and solve a cookie. Takes 2**bits hashes on average, so do not call it in an event loop."""
    counter = 0
    while not solves(cookie, counter):
        counter += 1
    return Proof(cookie, counter, key.public, key.sign(_DOMAIN, b"", cookie))


def solves(cookie: bytes, counter: int) -> bool:
    """Return whether the hash begins with as many zero bits as the cookie demands."""
    digest = hashlib.sha256(cookie + counter.to_bytes(8, "big")).digest()
    return int.from_bytes(digest, "big") >> (256 - cookie[0]) == 0


class Cookies:
    """The server's cookies. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._used: OrderedDict[bytes, None] = OrderedDict()

    def issue(self, bits: int, now: float) -> bytes:
        """Return a new cookie of `bits` bits, 0 to 255."""
        lapses = int(1000 * (now + COOKIE_SECONDS))
        head = bytes([bits]) + lapses.to_bytes(8, "big") + secrets.token_bytes(8)
        return head + self._mac(head)

    def use(self, cookie: bytes, now: float) -> bool:
        """Return whether the cookie is ours, has not expired and was not used before; mark it as used."""
        head, mac = cookie[:-16], cookie[-16:]
        if not hmac.compare_digest(mac, self._mac(head)) or 1000 * now > int.from_bytes(head[1:9], "big") or mac in self._used:
            return False

        self._used[mac] = None
        if len(self._used) > REMEMBERED_COOKIES:
            self._used.popitem(last=False)
        return True

    def _mac(self, head: bytes) -> bytes:
        return hmac.digest(self._secret, head, "sha256")[:16]
