"""Conformance of transports: what `psyche_core.interfaces.transport` promises, as tests a plugin author inherits.

    class TestMyTransport(TransportConformance):
        @asynccontextmanager
        async def make_mesh(self, count: int) -> AsyncIterator[list[Transport]]:
            ...  # enter `count` endpoints, tell each about all, yield them, leave them

No test assumes that the mesh is already connected when it is yielded. Every wait is for an event, with a deadline. If links can
be cut (a simulated network), override `cut` and `mend` and set `can_cut = True`.
"""

from __future__ import annotations

from psyche_core.testing.transport.conformance import TransportConformance
from psyche_core.testing.transport.mesh import BLOB, TIMEOUT, ExternalBlob, by_its_first_bytes, connected, received, until

__all__ = ["BLOB", "TIMEOUT", "ExternalBlob", "TransportConformance", "by_its_first_bytes", "connected", "received", "until"]
