"""A few downloads at once, and nobody held up for long by one that never ends."""

from __future__ import annotations

import anyio

from psyche_core.client.runtime.downloads import Limiter


async def test_no_more_than_so_many_are_at_it_at_once_and_all_get_their_turn() -> None:
    turns, running, most, done = Limiter(3, seconds=60.0), 0, 0, 0

    async def work() -> None:
        nonlocal running, most, done
        async with turns.turn():
            running += 1
            most = max(most, running)
            await anyio.sleep(0)
            await anyio.sleep(0)
            running -= 1
            done += 1

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(work)
    assert (most, done) == (3, 20)


async def test_those_that_never_end_hold_the_others_up_for_so_long_and_no_longer() -> None:
    """Members that announce results and give them to nobody must not keep us from everybody else's."""
    turns = Limiter(2, seconds=0.05)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def silent() -> None:
                async with turns.turn():
                    await anyio.sleep_forever()

            for _ in range(6):
                tasks.start_soon(silent)
            for _ in range(3):
                async with turns.turn():
                    pass
            tasks.cancel_scope.cancel()


async def test_a_turn_that_was_cancelled_or_failed_is_free_again() -> None:
    turns = Limiter(1, seconds=60.0)
    with anyio.fail_after(10):
        with anyio.CancelScope() as scope:
            async with turns.turn():
                scope.cancel()
                await anyio.sleep_forever()
        try:
            async with turns.turn():
                raise ValueError
        except ValueError:
            pass
        async with turns.turn():
            pass
