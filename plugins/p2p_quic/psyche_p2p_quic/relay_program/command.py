"""`psyche relay`: run a relay. Large modules are imported only when it runs, so that help is fast."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from psyche_core.option_groups import GroupedCommand, option
from psyche_core.text_safety import PrintableFormatter

_Command = TypeVar("_Command", bound=Callable[..., Any])

ADDRESSES, ACCESS, LIMITS, OBSERVING = "Addresses", "Access", "Limits", "Metrics and logs"
"""Headings of options."""

_EPILOG = (
    "\b\n"
    "Examples:\n"
    "  psyche relay run --host 0.0.0.0 --run-id my-run --server-addr server.example.org:20000#KEY\n"
    "  psyche relay run --host 0.0.0.0 --token-file tokens.txt --client-rate 20 --total-rate 100\n"
    "  psyche relay run --access open\n"
    "\n"
    "Every option can also be set by an environment variable, PSYCHE_<OPTION>. The command line takes precedence."
)


def _option(*flags: str, group: str, **given: Any) -> Callable[[_Command], _Command]:
    """A click option that the environment can set, too."""
    name = flags[0].partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return option(*flags, envvar=f"PSYCHE_{name}", group=group, **given)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def relay() -> None:
    """A relay for members behind routers."""


@relay.command(cls=GroupedCommand, epilog=_EPILOG)
@_option(
    "--host",
    "hosts",
    multiple=True,
    metavar="IP",
    group=ADDRESSES,
    help="Address to listen on; 0.0.0.0 or :: for all. Repeatable, one of each family.  [default: 127.0.0.1]",
)
@_option(
    "--port",
    type=click.IntRange(0, 65535),
    default=3340,
    show_default=True,
    group=ADDRESSES,
    help="TCP port of the relay; 0 picks a free one.",
)
@_option(
    "--observer/--no-observer",
    default=True,
    show_default=True,
    group=ADDRESSES,
    help="Tell callers the address that they are seen at, without which few of them find a direct path.",
)
@_option(
    "--observer-port",
    type=click.IntRange(0, 65535),
    metavar="N",
    group=ADDRESSES,
    help="UDP port of the address observer.  [default: the number of --port]",
)
@_option(
    "--url",
    metavar="URL",
    group=ADDRESSES,
    help="What members are given, if not http://HOST:PORT/: a name, or a proxy's address.",
)
@_option(
    "--tls-cert",
    type=click.Path(path_type=Path, dir_okay=False),
    group=ADDRESSES,
    help="TLS certificate with its chain, in PEM. It must be "
    "one that browsers accept: members refuse all others. Without it the relay speaks plain HTTP, and the ids of members, "
    "who talks to whom, how much, and tokens can be read on the way. What members send each other cannot, with or without "
    "TLS: it is encrypted from end to end.",
)
@_option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), group=ADDRESSES, help="Private key of --tls-cert, in PEM.")
@_option(
    "--access",
    type=click.Choice(["open", "token", "members"]),
    group=ACCESS,
    help="Who may use the relay: everybody, who knows a token, "
    "or members of the given runs; who stops being one is cut off.  [default: members with --run-id, token with "
    "--token-file]",
)
@_option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    group=ACCESS,
    help="File with the accepted tokens, one a line, # for comments. Read again when it changes.",
)
@_option(
    "--run-id", "run_ids", multiple=True, metavar="TEXT", group=ACCESS, help="Run whose members may use the relay. Repeatable."
)
@_option(
    "--server-addr",
    "server_addrs",
    multiple=True,
    metavar="TEXT",
    group=ACCESS,
    help="Coordinator of the run, as members give it; one for each --run-id, in the same order.",
)
@_option(
    "--backend",
    default="tcp",
    show_default=True,
    metavar="NAME",
    group=ACCESS,
    help="Coordinator backend of the runs. Its own settings come from the environment, such as PSYCHE_RPC.",
)
@_option(
    "--identity-secret-key-path",
    "-i",
    type=click.Path(path_type=Path, dir_okay=False),
    group=ACCESS,
    help="File with the relay's 32-byte key: for a coordinator with --allow-list, and so that the observer's key stays the "
    "same.  [default: a new key]",
)
@_option(
    "--client-rate",
    type=click.FloatRange(min=0.1),
    metavar="MB",
    group=LIMITS,
    help="Most megabytes a second from one client.  [default: no limit]",
)
@_option(
    "--total-rate",
    type=click.FloatRange(min=0.1),
    metavar="MB",
    group=LIMITS,
    help="Most megabytes a second from all clients together.  [default: no limit]",
)
@_option(
    "--max-clients", type=click.IntRange(1, 1_000_000), default=4096, show_default=True, group=LIMITS, help="Clients at once."
)
@_option(
    "--max-connections-per-address",
    type=click.IntRange(1, 1_000_000),
    default=64,
    show_default=True,
    group=LIMITS,
    help="Connections of one IPv4 address or IPv6 /56, counted before anything is read from them; at most 10 new ones a second.",
)
@_option(
    "--max-queued",
    type=click.IntRange(min=8),
    default=256,
    show_default=True,
    metavar="MB",
    group=LIMITS,
    help="Memory for what waits here for slow clients, 4 MB at most for one of them. The kernel takes 0.4 MB for each on top.",
)
@_option(
    "--public-metrics", is_flag=True, group=OBSERVING, help="Answer /metrics to everybody, not only to programs on this machine."
)
@_option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning"]),
    default="info",
    show_default=True,
    group=OBSERVING,
    help="info shows each client that comes and goes.",
)
def run(**given: Any) -> None:
    """Run a relay and an address observer, until it is stopped.

    Members that cannot reach each other directly send their encrypted traffic through the relay; the observer helps them find a
    direct path, after which they use the relay no more. It needs one TCP and one UDP port that members can reach. HTTP paths:
    /relay, /ping, /generate_204, /observer, /healthz and /metrics (for Prometheus).

    SIGTERM tells the clients that the relay goes, closes their connections and exits with 0; they go on where they have direct
    paths, and return when the relay is back. Exit status: 0 after SIGTERM, 130 after SIGINT (Ctrl-C), 2 for an error that you
    can correct, 1 for other failures.
    """
    from psyche_p2p_quic.relay_program.run import read_options, run_relay

    _log_to_stderr(given.pop("log_level"))
    code = run_relay(read_options(given))
    if code:
        raise SystemExit(code)


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("psyche").setLevel(level.upper())
