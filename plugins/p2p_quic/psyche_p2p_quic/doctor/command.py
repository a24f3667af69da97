"""`psyche doctor`: is this machine fit to take part?"""

from __future__ import annotations

import json
from pathlib import Path

import click
from click.core import ParameterSource

_EPILOG = (
    "\b\n"
    "Examples:\n"
    "  psyche doctor network --server-addr server.example.org:20000#KEY --run-id first-light\n"
    "  psyche doctor network --server-addr 203.0.113.7:20000#KEY --relay https://relay.example.org --json\n"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def doctor() -> None:
    """Find out whether this machine can take part in a run."""


@doctor.command(epilog=_EPILOG)
@click.option("--server-addr", required=True, envvar="PSYCHE_SERVER_ADDR", metavar="TEXT",
              help="Address of the coordinator, host:port#KEY, as for `psyche client train`.  [required]")  # fmt: skip
@click.option("--run-id", envvar="PSYCHE_RUN_ID", metavar="TEXT", help="Run at that server, to test its relays as well.")
@click.option("--relay", "relays", multiple=True, metavar="URL",
              help="Relay to test. Repeatable: two relays on different hosts tell the kind of router.")  # fmt: skip
@click.option("--relay-token", envvar="PSYCHE_IROH_RELAY_TOKEN", metavar="TEXT", help="Token for relays that ask for one.")
@click.option("-i", "--identity-secret-key-path", "key_path", type=click.Path(path_type=Path),
              envvar="PSYCHE_IDENTITY_SECRET_KEY_PATH",
              help="Your key, for relays that serve members only. Do not use it while a client runs with it.")  # fmt: skip
@click.option("--bind-p2p-interface", "interface", default="auto", envvar="PSYCHE_BIND_P2P_INTERFACE", show_default=True,
              help="As for `psyche client train`.")  # fmt: skip
@click.option("--bind-p2p-port", "port", type=click.IntRange(0, 65535), default=0, envvar="PSYCHE_BIND_P2P_PORT",
              help="As for `psyche client train`.")  # fmt: skip
@click.option("--rates/--no-rates", default=True, show_default=True, help="Measure the relays' upload and download rates.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def network(
    server_addr: str,
    run_id: str | None,
    relays: tuple[str, ...],
    relay_token: str | None,
    key_path: Path | None,
    interface: str,
    port: int,
    rates: bool,
    as_json: bool,
) -> int:
    """Test the network between this machine, a server and relays, and say how others will reach it.

    Contacts the given server and relays, and the relays that the run names; nobody else. Exit status: 0 if you can take part,
    directly or relayed; 1 if you cannot, or if that could not be found out; 2 for an error in the options.
    """
    import anyio

    from psyche_core.errors import UserError
    from psyche_core.p2p.local_address import interface_towards
    from psyche_core.wire.signing import SecretKey
    from psyche_p2p_quic.addresses.relay_urls import canonical_relays
    from psyche_p2p_quic.doctor import verdict as verdicts
    from psyche_p2p_quic.doctor.checks import measure
    from psyche_p2p_quic.doctor.report import lines

    by_hand = click.get_current_context().get_parameter_source("relay_token") is ParameterSource.COMMANDLINE
    if by_hand and not relays and run_id is None:
        message = "--relay-token is for a relay, and none is tested; name one with --relay, or the run with --run-id"
        raise UserError(message)
    try:
        canonical_relays(relays)
    except ValueError as error:
        message = f"--relay: {error}"
        raise UserError(message) from error

    key = None if key_path is None else SecretKey.load(key_path)
    bound = interface_towards(server_addr) if interface == "auto" else interface

    async def run() -> verdicts.Figures:
        return await measure(
            server_addr, relays, interface=bound, port=port, run_id=run_id, key=key, token=relay_token, rates=rates
        )

    figures = anyio.run(run)
    if by_hand and figures.server_reachable and not figures.server_problem and not figures.relays:
        message = f"--relay-token is for a relay, and the run {run_id!r} names none; name one with --relay"
        raise UserError(message)
    verdict = verdicts.judge(figures)
    if as_json:
        click.echo(json.dumps(verdicts.as_json(figures, verdict)))
    else:
        for line in lines(figures, verdict):
            click.echo(line)
    return 1 if verdict.kind in ("impossible", "unknown") else 0
