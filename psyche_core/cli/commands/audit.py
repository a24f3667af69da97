"""`psyche audit`: recompute a run's weights from published journals, and check everything on the way."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psyche_core.cli.lazy import example
from psyche_core.errors import BackendError, PsycheError, UserError

if TYPE_CHECKING:
    from psyche_core.audit.auditing import Signed
    from psyche_core.audit.replaying import Progress
    from psyche_core.coordinator.state import CoordinatorState

PATH = click.Path(path_type=Path)
DIFFERENCE = 1
STATE_SECONDS = 30.0
"""How long to wait for the state of a coordinator."""

_MAX_LINE = 4000


@click.command(
    context_settings={"max_content_width": 110},
    epilog=example(
        "psyche audit journals --config-path examples/local_testnet",
        "psyche audit alice/journals bob/journals --config-path state.toml --checkpoint checkpoints --json",
        "psyche audit journals --config-path examples/local_testnet --until 120 --out model-of-step-120",
        note="Exit status: 0 verified; 1 a difference was found; 2 the audit could not be done, for instance because a journal "
        "is missing. Members publish journals with `psyche client train --publish-journal`.",
    ),
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=PATH)
@click.option(
    "--config-path", required=True, type=PATH, help="The run file (state.toml, or an owner's config.toml), or its folder."
)
@click.option("--run-id", help="Name of the run, for a run file without one.")
@click.option(
    "--checkpoint",
    type=PATH,
    help="Checkpoint to begin with, or a folder of them: the first from which a journal goes on. [default: the run's first "
    "weights, as the run file names them]",
)
@click.option("--until", type=click.IntRange(min=0), metavar="STEP", help="Stop after this step. [default: the last one]")
@click.option("--out", type=PATH, help="Write the model after the last step into this folder, as a checkpoint.")
@click.option(
    "--server-addr", help="Also ask this coordinator (HOST:PORT#KEY) which models its run's members signed, and compare."
)
@click.option("--backend", default="tcp", show_default=True, help="Backend of that coordinator, by plugin name.")
@click.option("--base", type=PATH, help="Folder at which relative paths of the run file start. [default: the run file's folder]")
@click.option("--cache-dir", type=PATH, help="Folder for downloads. [default: the system's cache folder]")
@click.option("--device", default="cpu", show_default=True, help="auto, cpu, mps, cuda or cuda:N.")
@click.option("--torch-threads", type=click.IntRange(min=1), help="CPU threads for torch; default: chosen by torch.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def audit(
    sources: tuple[Path, ...],
    config_path: Path,
    run_id: str | None,
    checkpoint: Path | None,
    until: int | None,
    out: Path | None,
    server_addr: str | None,
    backend: str,
    base: Path | None,
    cache_dir: Path | None,
    device: str,
    torch_threads: int | None,
    as_json: bool,
) -> int:
    """Recompute a run's weights from published journals, and check everything on the way.

    SOURCE is a journal that a member published, or a folder of them. No gradients are computed, and no data is needed.

    \b
    Checked for each step, in order, up to the first difference:
      - every accepted result is in the journal, and its payload has the announced SHA-256 and fits the model
      - its commitment follows from run, round, share, trainer and payload, and its trainer signed it
      - the learning rate is that of the run file
      - the recomputed model has the digest of each journal's and each checkpoint's model, and of those that members signed
      - journals and checkpoints of several members say the same, digests of witnesses' statements included

    \b
    Not checked, since journals do not say it:
      - which statements of witnesses accepted a result: only their digest is there
      - whether a member was given the share that it trained, and to whom a key belongs
      - whether a result is honest work: nobody's gradients are computed again
    """  # noqa: D301  # \b is click's
    from psyche_core.audit.auditing import AuditRequest
    from psyche_core.audit.auditing import audit as run_audit
    from psyche_core.config.run_config import load_run_file
    from psyche_core.plugins import PluginRegistry
    from psyche_core.plugins.model_stores import StoreOpener
    from psyche_core.storage.scratch import default_folder
    from psyche_core.text_safety import printable
    from psyche_core.training.build import Compute
    from psyche_core.ui.formatting import bytes_text

    file = config_path / "state.toml" if config_path.is_dir() else config_path
    run = load_run_file(file, run_id=run_id)
    if torch_threads is not None:
        import torch

        torch.set_num_threads(torch_threads)
    try:
        request = AuditRequest(
            sources=sources,
            run=run,
            base=base or file.absolute().parent,
            cache=cache_dir or default_folder(),
            checkpoint=checkpoint,
            until=until,
            out=out,
            signed=None if server_addr is None else _signed(run.run_id, server_addr, backend),
            compute=Compute(device=device),
            run_file=file,
        )
        with _shown(hidden=as_json) as progress:
            registry = PluginRegistry.discover()
            report = run_audit(
                request,
                registry.load,
                open_store=StoreOpener(registry),
                progress=progress,
                say=lambda sentence: click.echo(printable(sentence), err=True),
            )
    except UserError:
        raise
    except PsycheError as error:  # exit status 1 says that a difference was found
        raise UserError(error.sentence) from error

    if as_json:
        click.echo(json.dumps(report.document(), indent=2))
    else:
        for line in report.lines(size=bytes_text(report.payload_bytes), duration=f"{report.seconds:.1f} s"):
            click.echo(printable(line, at_most=_MAX_LINE))
    return 0 if report.verified else DIFFERENCE


def _signed(run_id: str, address: str, backend: str) -> Signed:
    """What the members of a run signed, as its coordinator knows it. Raises UserError and BackendError."""
    import anyio

    from psyche_core.sdk.observe import observed_run

    async def ask() -> CoordinatorState:
        with anyio.fail_after(2 * STATE_SECONDS):
            async with observed_run(run_id, address, backend=backend, retry_seconds=STATE_SECONDS) as connection:
                return (await connection.next_state()).state

    try:
        return signed_in(anyio.run(ask), source=f"the coordinator {address.partition('#')[0]}")
    except TimeoutError as error:
        message = f"the coordinator {address} gave no state within {2 * STATE_SECONDS:g} s; check that it runs, and try again"
        raise BackendError(message) from error


def signed_in(state: CoordinatorState, *, source: str) -> Signed:
    """What a coordinator's state says about the run's history. source: who gave the state, for people."""
    from psyche_core.audit.auditing import Signed
    from psyche_core.client.machine.rounds.settled_rounds import decision_of
    from psyche_core.coordinator.history import histories, signed_digests

    decided = (decision_of(state, played.step) for played in state.epoch.rounds if not played.drain)
    return Signed(
        instance=state.instance,
        ends=signed_digests(state),
        decisions={decision.step: decision for decision in decided if decision is not None},
        source=source,
        histories=histories(state),
    )


@contextmanager
def _shown(*, hidden: bool) -> Iterator[Callable[[Progress], None]]:
    """A progress bar on standard error, if that is a terminal: steps, results, time left."""
    if hidden or not sys.stderr.isatty():
        yield lambda _: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[results]:,} results"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, results=0)
        yield lambda done: bar.update(task, completed=done.steps, total=done.total, results=done.results)
