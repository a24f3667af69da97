"""What an address observer and its relay answer with: what is accepted encodes to the same."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_p2p_quic.address_observer.protocol import MAX_LOCATION_BYTES, Observation, ObserverLocation
from tests.fuzz.mutation import change_cbor as mutate

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = MAX_LOCATION_BYTES
MEMORY = (200, 65_536)


def seeds() -> list[bytes]:
    return [
        Observation("203.0.113.7", 4242).encode(),
        Observation("2001:db8::1", 65_535).encode(),
        ObserverLocation(bytes(range(32)), 3340).encode(),
    ]


def TARGET(data: bytes) -> None:
    if data[:1] == b"{":
        location = ObserverLocation.decode(data)
        assert ObserverLocation.decode(location.encode()) == location
        return

    seen = Observation.decode(data)
    assert Observation.from_text(str(seen)) == seen
    assert Observation.decode(seen.encode()) == seen
