"""A page that is really served, and what asks it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest

from psyche_core.web.access import Access
from psyche_core.web.feeds import Feeds
from psyche_core.web.hosting import listen, serving

Served = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def served() -> Served:
    """Serve feeds and give a client of the page."""

    @contextlib.asynccontextmanager
    async def serve(feeds: Feeds, access: Access | None = None) -> AsyncIterator[httpx.AsyncClient]:
        async with (
            serving(feeds, access or Access(), listen("127.0.0.1", 0)) as url,
            httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client,
        ):
            yield client

    return serve


async def messages(client: httpx.AsyncClient, url: str, **headers: str) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """(id, data) of server-sent events."""
    identity = ""
    async with client.stream("GET", url, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                identity = value
            elif name == "data":
                yield identity, json.loads(value)
