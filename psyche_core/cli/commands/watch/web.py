"""`psyche web`: runs on a web page."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import click

from psyche_core.cli.lazy import example
from psyche_core.cli.options import ENVIRONMENT_NOTE, PluginOptions, settings_options
from psyche_core.cli.program import log_to_stderr, run_program
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.web import WebSettings

if TYPE_CHECKING:
    from psyche_core.interfaces import Backend


class _BackendOptions(PluginOptions):
    """The backend to follow adds its options, such as --rpc."""

    kinds: ClassVar[tuple[str, ...]] = ("backend",)


@click.command(
    cls=_BackendOptions,
    epilog=example(
        "psyche web --events runs",
        "psyche web --events events --web-host 0.0.0.0 --token-file tokens",
        "psyche web --run-id first-light --server-addr 203.0.113.7:20000#KEY",
        "psyche web --run-id first-light --backend solana --rpc https://api.devnet.solana.com",
        note=f"{ENVIRONMENT_NOTE} A backend may have further options: `psyche web --backend NAME --help`.",
    ),
)
@settings_options(WebSettings)
def web(**given: Any) -> int:
    """Show runs live on a web page: curves, members, epochs, checkpoints. It only reads.

    Losses are drawn against steps, tokens and time; members have pages of their own. The page loads nothing from other hosts, and
    is at http://127.0.0.1:8420/ unless another address is given. Ctrl-C ends it.
    """
    settings = load_settings(WebSettings, {name: value for name, value in given.items() if name in WebSettings.model_fields})
    log_to_stderr()
    run_program(functools.partial(_serve, settings, given))
    return 0


async def _serve(settings: WebSettings, given: Mapping[str, Any]) -> None:
    from psyche_core.cli.pages import print_address
    from psyche_core.errors import UserError
    from psyche_core.web.access import Access
    from psyche_core.web.feeds import Feeds
    from psyche_core.web.hosting import listen, new_server, serving
    from psyche_core.web.sources import check_folder, follow_coordinator, watch_folder, watch_silence
    from psyche_core.web.visitors import VisitorLimits

    if settings.events is None and settings.run_id is None:
        message = "nothing to show: give event files with --events DIR, or a coordinator with --run-id and --server-addr"
        raise UserError(message)

    access, feeds, limits = Access.load(settings.token_file), Feeds(), VisitorLimits(per_address=settings.web_per_address)
    new_server(feeds, access)  # reports what is missing now
    backend = None if settings.run_id is None else _backend(settings, settings.run_id, given)
    if settings.events is not None and (why := check_folder(settings.events)) is not None:
        raise UserError(why)

    async with (
        serving(feeds, access, listen(settings.web_host, settings.web_port), limits=limits) as url,
        anyio.create_task_group() as tasks,
    ):
        if backend is not None:
            assert settings.run_id is not None
            feed = feeds.add(settings.run_id)
            tasks.start_soon(follow_coordinator, backend, feed)
            tasks.start_soon(watch_silence, feed)
        if settings.events is not None:
            tasks.start_soon(watch_folder, settings.events, feeds)
        print_address(url)
        await anyio.sleep_forever()


def _backend(settings: WebSettings, run_id: str, given: Mapping[str, Any]) -> Backend:
    """A connection to the coordinator that only reads. Raises UserError."""
    from psyche_core.errors import UserError
    from psyche_core.hookspecs import BackendContext
    from psyche_core.plugins import PluginRegistry
    from psyche_core.wire.signing import SecretKey

    kind = PluginRegistry.discover().load("backend", settings.backend)
    if kind.needs_address and settings.server_addr is None:
        message = f"the backend {settings.backend} needs the coordinator's address; give it with --server-addr"
        raise UserError(message)

    cls = kind.settings
    own = None if cls is None else load_settings(cls, {name: given.get(name) for name in cls.model_fields})
    context = BackendContext(
        run_id=run_id,
        address=settings.server_addr or "",
        key=SecretKey.generate(),
        settings=own,
        retry_seconds=settings.reconnect_seconds,
    )
    return (kind.observe or kind.create)(context)
