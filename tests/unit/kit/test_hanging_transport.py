"""A transport that never delivers fails every test that waits for it, in a sentence, and soon after the first."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fork_server import shared

PAGE = (Path(__file__).parents[3] / "docs" / "plugins" / "broken-plugins.md").read_text()

TESTS = """
import contextlib
import anyio
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.testing.transport import TransportConformance

class Hanging(MemoryTransport):
    async def receive(self):
        await anyio.sleep_forever()

class TestHanging(TransportConformance):
    timeout = 0.3

    @contextlib.asynccontextmanager
    async def make_mesh(self, count):
        network = MemoryNetwork()
        async with contextlib.AsyncExitStack() as stack:
            mesh = [await stack.enter_async_context(Hanging(network, bytes([number]) * 32)) for number in range(1, count + 1)]
            for endpoint in mesh:
                await endpoint.set_peers({other.peer_id: other.address for other in mesh if other is not endpoint})
            yield mesh

def test_it_was_noticed():
    assert TestHanging in TransportConformance._hung
"""


def test_a_transport_that_hangs_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "test_hanging.py"
    file.write_text(TESTS)
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), str(file)]
    command = ["pytest", *options, "-k", "broadcast_reaches_all or via_names or noticed"]
    done = shared().run(command, cwd=tmp_path, env=os.environ, timeout=100)
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    told = set(re.findall(r"^E +AssertionError: (`receive` .*)$", done.stdout, flags=re.MULTILINE))
    contract = "within 0.3 s; the contract is psyche_core.interfaces.Transport"
    assert any(f"`{sentence.replace('`', '')}`" in PAGE for sentence in told), "the page shows one of them"
    assert told == {f"`receive` gave 0 of {count} messages that others had broadcast {contract}" for count in (1, 15)}
