"""Transport addresses as joins carry them: in parts where one transaction is too small for all of it. Pure.

Decided: the `address` of a join instruction is number of the part (u8), how many there are (u8), and the part. Ours fit one
part; an address of up to 1024 bytes takes three joins, each of which only renews the member's entry. Believed is a part of
whoever signed the join. Refuses to keep more than the newest address of a member.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from psyche_backend_solana.layouts.coordinator import MAX_ADDRESS_BYTES as MAX_PART_BYTES

MAX_ADDRESS_BYTES = 1024
"""Of an address, as the backend's contract has it."""
_HEAD = 2
_ROOM = MAX_PART_BYTES - _HEAD


def parts(address: bytes) -> tuple[bytes, ...]:
    """The parts of an address, one for each join. Raises ValueError for one over MAX_ADDRESS_BYTES."""
    if len(address) > MAX_ADDRESS_BYTES:
        message = f"a transport address has at most {MAX_ADDRESS_BYTES} bytes, got {len(address)}"
        raise ValueError(message)

    pieces = [address[start : start + _ROOM] for start in range(0, len(address), _ROOM)] or [b""]
    return tuple(bytes((number, len(pieces))) + piece for number, piece in enumerate(pieces))


@dataclass(slots=True)
class _Entry:
    p2p: bytes
    count: int
    pieces: list[bytes] = field(default_factory=list)
    whole: bytes | None = None


class AddressBook:
    """The newest address of everybody who joined, by signer. Joins are noted in the chain's order."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}
        self._whole: dict[bytes, tuple[bytes, bytes]] = {}

    def note(self, signer: bytes, p2p: bytes, part: bytes) -> bool:
        """A join that succeeded. Whether an address became known or another one; malformed parts are left out."""
        if len(part) < _HEAD:
            return False

        number, count = part[0], part[1]
        if not 0 <= number < count or count * _ROOM > MAX_ADDRESS_BYTES + _ROOM:
            return False
        if number == 0:
            self._entries[signer] = _Entry(p2p, count)
        entry = self._entries.get(signer)
        if entry is None or entry.p2p != p2p or entry.count != count or len(entry.pieces) != number:
            self._entries.pop(signer, None)
            return False

        entry.pieces.append(part[_HEAD:])
        if len(entry.pieces) < count:
            return False

        del self._entries[signer]
        found = (p2p, b"".join(entry.pieces)[:MAX_ADDRESS_BYTES])
        changed = self._whole.get(signer) != found
        self._whole[signer] = found
        return changed

    def address(self, signer: bytes, p2p: bytes) -> bytes | None:
        """The address that a signer published together with this transport key, None when it is not known."""
        known = self._whole.get(signer)
        return known[1] if known is not None and known[0] == p2p else None

    def keep(self, signers: frozenset[bytes]) -> None:
        """Forget everybody else."""
        for table in (self._entries, self._whole):
            for signer in [signer for signer in table if signer not in signers]:
                del table[signer]
