"""Nobody hears of a change before it is on disk."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from plugins.backend_tcp.tests.restart_parts import TIMEOUT, hosting, identity_of, port_of, proof_of
from psyche_backend_tcp.server.hub import PendingSave
from psyche_backend_tcp.server.state_store import StateStore
from psyche_core.errors import UserError
from psyche_core.testing.backend import until
from psyche_core.wire.signing import SecretKey


class Held(StateStore):
    """A store whose writes wait until the test lets them through, or fail."""

    writing = threading.Event()
    go = threading.Event()
    broken = False
    written: list[PendingSave]

    def save(self, pending_save: PendingSave) -> None:
        self.writing.set()
        assert self.go.wait(TIMEOUT)
        if self.broken:
            message = "the run's state cannot be saved to disk: No space left on device"
            raise UserError(message)
        super().save(pending_save)
        self.written.append(pending_save)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> type[Held]:
    fresh = type("Held", (Held,), {"writing": threading.Event(), "go": threading.Event(), "broken": False, "written": []})
    monkeypatch.setattr("psyche_backend_tcp.server.tcp_server.StateStore", fresh)
    return fresh


async def wait_for(event: threading.Event) -> None:
    with anyio.fail_after(TIMEOUT):
        while not event.is_set():
            await anyio.sleep(0.001)


async def test_nobody_hears_of_a_change_before_it_is_on_disk(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey], held: type[Held]
) -> None:
    async with hosting(tmp_path, clock) as server, client(server, keys[0]) as one, client(server, keys[1]) as other:
        first = await other.next_state()
        async with anyio.create_task_group() as group:
            answered = anyio.Event()

            async def join() -> None:
                await one.join(b"here", timeout=TIMEOUT)
                answered.set()

            group.start_soon(join)
            await wait_for(held.writing)
            assert server.state.pending == (one.identity,), "it has happened"
            with anyio.move_on_after(0.05):
                await other.next_state()
                pytest.fail("the state was told before it was saved")
            assert not answered.is_set()
            assert StateStore(tmp_path, first.state.run_id).load() is None
            held.go.set()
            update = await until(other, lambda update: bool(update.state.pending))
            saved = StateStore(tmp_path, first.state.run_id).load()
            assert saved is not None
            assert saved.update == update
            with anyio.fail_after(TIMEOUT):
                await answered.wait()


async def test_what_was_saved_but_told_to_nobody_goes_on_after_kill_9(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey], held: type[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies between the write and the telling: the next one has it, and the client's join is answered by that one."""
    with anyio.fail_after(3 * TIMEOUT):
        async with AsyncExitStack() as stack:
            async with hosting(tmp_path, clock) as first:
                backend = await stack.enter_async_context(client(first, keys[0]))
                await backend.next_state()
                monkeypatch.setattr(first._hub, "saved", lambda _: None)  # from here on it tells nothing more
                held.go.set()
                with pytest.raises(TimeoutError):
                    await backend.join(b"here", timeout=0.3)
                assert len(held.written) == 1
                port = port_of(first)
            async with hosting(tmp_path, clock, port=port) as second:
                assert second.state.pending == (backend.identity,)
                await backend.join(b"here", timeout=2 * TIMEOUT)
                update = await until(backend, lambda update: bool(update.addresses))
                assert update.state.pending == (backend.identity,)


async def test_a_full_disk_is_told_once_and_so_is_its_end(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey], held: type[Held], monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("psyche_backend_tcp.server.tcp_server._SAVE_AGAIN_SECONDS", 0.001)
    refused = 0

    def save(store: StateStore, pending_save: PendingSave) -> None:
        nonlocal refused
        if refused < 5:
            refused += 1
            message = "the run's state cannot be saved to disk: No space left on device"
            raise UserError(message)
        StateStore.save(store, pending_save)

    monkeypatch.setattr(held, "save", save)
    async with hosting(tmp_path, clock) as server, client(server, keys[0]) as backend:
        with anyio.fail_after(TIMEOUT):
            await backend.join(b"here", timeout=TIMEOUT)
    assert refused == 5
    assert caplog.messages == [
        "the run's state cannot be saved to disk: No space left on device; members get no new state until it can be saved",
        "the run's state is saved again, and members get the new state",
    ]


async def test_what_was_not_saved_was_told_to_nobody(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey], held: type[Held]
) -> None:
    async with hosting(tmp_path, clock) as server, client(server, keys[0]) as backend:
        await backend.next_state()
        held.broken = True
        held.go.set()
        with pytest.raises(TimeoutError):
            await backend.join(b"here", timeout=0.2)
        with anyio.move_on_after(0.05):
            await backend.next_state()
            pytest.fail("a state that could not be saved was told")
        held.broken = False
        with anyio.fail_after(TIMEOUT):
            update = await until(backend, lambda update: bool(update.addresses))
        assert update.state.pending == (backend.identity,)


async def test_changes_during_a_write_share_the_next_one(
    client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey], held: type[Held]
) -> None:
    async with hosting(tmp_path, clock) as server:
        async with AsyncExitStack() as stack:
            backends = [await stack.enter_async_context(client(server, SecretKey(bytes([9, n]) * 16))) for n in range(12)]
            async with anyio.create_task_group() as group:
                for backend in backends:
                    group.start_soon(partial(backend.join, b"here", timeout=TIMEOUT))
                with anyio.fail_after(TIMEOUT):
                    while len(server.state.pending) < 12:
                        await anyio.sleep(0.001)
                held.go.set()
            assert len(held.written) <= 3


async def test_stopping_saves_what_nobody_was_told(client: Any, clock: Any, tmp_path: Path, keys: list[SecretKey]) -> None:
    async with hosting(tmp_path, clock) as server:
        server._hub.connect(identity_of(keys[0]), server._now())
        server._hub._join(identity_of(keys[0]), b"here", server._now(), proof=proof_of(keys[0], server))
    saved = StateStore(tmp_path, "conformance").load()
    assert saved is not None
    assert saved.update.state.pending == (identity_of(keys[0]),)
