"""A websocket that reports when an account changes, for one endpoint. It is reopened whenever it is lost.

It subscribes only to the account's nonce, so that a notification is small. Notifications with the whole account are also
accepted. Several endpoints may be subscribed to at the same time: each reports a number, and only a higher one counts. A socket
can be open and silent, so `watcher` also polls.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from typing import Any

import anyio
from solders.pubkey import Pubkey
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidURI, WebSocketException

from psyche_backend_solana.layouts.coordinator_accounts import NONCE_BYTES, NONCE_OFFSET
from psyche_backend_solana.rpc.choice import pause
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.rpc.methods import COMMITMENT, read_account

logger: logging.Logger = logging.getLogger("psyche.backend.solana")

MAX_NOTICE_BYTES = 2**20
OPEN_SECONDS = 10.0
PING_SECONDS = 15.0
_LOST = (OSError, TimeoutError, WebSocketException, InvalidHandshake, InvalidURI, ValueError, KeyError, TypeError, IndexError)


class Subscription:
    """Listens for changes of one account at one endpoint. on_nonce: called with every reported nonce."""

    def __init__(self, endpoint: Endpoint, account: Pubkey, *, on_nonce: Callable[[int], None]) -> None:
        self._endpoint = endpoint
        self._account = account
        self._on_nonce = on_nonce
        self._random = random.SystemRandom()
        self._current: anyio.CancelScope | None = None
        self.listening: bool = False

    async def run(self) -> None:
        """Listen until cancelled."""
        attempt = 0
        while True:
            with anyio.CancelScope() as self._current:
                try:
                    async with connect(
                        self._endpoint.websocket,
                        open_timeout=OPEN_SECONDS,
                        ping_interval=PING_SECONDS,
                        ping_timeout=PING_SECONDS,
                        close_timeout=1,
                        max_size=MAX_NOTICE_BYTES,
                    ) as socket:
                        await self._subscribe(socket)
                        attempt, self.listening = 0, True
                        async for message in socket:
                            self._receive(message)
                except _LOST as error:
                    logger.info("the websocket of %s was lost: %s", self._endpoint.name, error)
                finally:
                    self.listening = False
            await anyio.sleep(pause(attempt, self._random.random()))
            attempt += 1

    def reopen(self) -> None:
        """Replace this connection by a new one, because it seems to report nothing any more."""
        if self._current is not None and self.listening:
            self._current.cancel()

    async def _subscribe(self, socket: ClientConnection) -> None:
        options = {
            "encoding": "base64",
            "commitment": COMMITMENT,
            "dataSlice": {"offset": NONCE_OFFSET, "length": NONCE_BYTES},
        }
        request = {"jsonrpc": "2.0", "id": 1, "method": "accountSubscribe", "params": [str(self._account), options]}
        await socket.send(json.dumps(request))
        with anyio.fail_after(OPEN_SECONDS):
            while True:
                answer = json.loads(await socket.recv())
                if answer.get("id") == 1:
                    break

        if "result" not in answer:
            message = f"the subscription was refused: {answer.get('error')!r:.200}"
            raise ValueError(message)

    def _receive(self, message: Any) -> None:
        notice = json.loads(message)
        if notice.get("method") != "accountNotification":
            return

        read = read_account(notice["params"]["result"])
        if read is None:
            return
        data = read.data if len(read.data) == NONCE_BYTES else read.data[NONCE_OFFSET : NONCE_OFFSET + NONCE_BYTES]
        self._on_nonce(int.from_bytes(data, "little"))
