"""A coordinator for the doctor's tests in the laboratory: it proves its key to whoever connects, and then says nothing.

`python -m tests.nat.coordinator PORT` listens on every address until it is killed, and prints the address to give to a doctor.
"""

from __future__ import annotations

import asyncio
import sys

from psyche_backend_tcp.connections.tls import server_context
from psyche_core.wire.signing import SecretKey


async def _keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def main(port: int) -> None:
    """Serve forever."""
    key = SecretKey.generate()
    async with await asyncio.start_server(_keep, "0.0.0.0", port, ssl=server_context(key)) as server:
        print(f":{port}#{key.public.hex()}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
