"""`psyche predownload`: get a run's model before joining, so that the warmup is not spent on the download."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from psyche_core.cli.lazy import example
from psyche_core.cli.options import PluginOptions
from psyche_core.errors import ConfigError, NoSuchModel

if TYPE_CHECKING:
    from psyche_core.config.run_config import Choice
    from psyche_core.plugins import PluginRegistry

_BACKEND = "solana"
"""The backend whose runs can be read without taking part."""


class _Predownload(PluginOptions):
    kinds: ClassVar[tuple[str, ...]] = ("backend",)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A run that is named without a backend is one on a chain."""
        names = {word.partition("=")[0] for word in args}
        if names & {"-r", "--run-id"} and "--backend" not in names:
            args = ["--backend", _BACKEND, *args]
        return super().parse_args(ctx, args)


@click.command(
    cls=_Predownload,
    epilog=example(
        "psyche predownload --state state.toml",
        "psyche predownload --run-id first-light --rpc https://api.devnet.solana.com",
        "psyche predownload --model-store hf://HuggingFaceTB/SmolLM2-135M",
        "psyche predownload --model-store gs://my-bucket/runs/first-light-step400",
        note="Files that exist already are not downloaded again. A private repository or bucket needs its usual credentials "
        "(HF_TOKEN, GOOGLE_APPLICATION_CREDENTIALS, AWS_ACCESS_KEY_ID, …).",
    ),
)
@click.option("--state", type=click.Path(path_type=Path), help="Run file (state.toml) whose checkpoint to get.")
@click.option("-r", "--run-id", help="Name of a run whose checkpoint to get, as its --backend knows it.")
@click.option(
    "--backend",
    help="With --run-id: the coordinator backend, by plugin name. It has further options: `psyche predownload --backend NAME "
    "--help`.  [default: solana]",
)
@click.option("--model", "model", is_flag=True, help="Get the model, which this command does anyway.")
@click.option("--eval-tasks", help="Also get the data of these benchmarks, separated by commas; needs the extra `eval`.")
@click.option(
    "--model-store",
    help="URL of the model: hf://OWNER/NAME[@REVISION], gs:// or s3://BUCKET/PREFIX, file:///FOLDER, or a plugin's.",
)
@click.option("--hub-repo", help="Repository of the Hub, or a local folder.")
@click.option("--revision", help="Commit, branch or tag of that repository.")
@click.option("--gcs-bucket", help="Bucket of Google Cloud Storage; s3://NAME for one of S3.")
@click.option("--gcs-prefix", help="Folder of the checkpoint in that bucket.")
@click.option(
    "--cache-dir", type=click.Path(path_type=Path), help="Folder for downloads from buckets; default: the system's cache folder."
)
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="Folder at which relative paths start; default: the folder of --state FILE, otherwise the current folder.",
)
def predownload(
    state: Path | None,
    run_id: str | None,
    backend: str | None,
    model: bool,  # noqa: ARG001  # the only thing that is downloaded
    eval_tasks: str | None,
    model_store: str | None,
    hub_repo: str | None,
    revision: str | None,
    gcs_bucket: str | None,
    gcs_prefix: str | None,
    cache_dir: Path | None,
    base: Path | None,
    **of_plugins: Any,
) -> None:
    """Download and verify a model now, so that joining its run later needs no download."""
    from psyche_core.config.run_config import Choice, load_run_file
    from psyche_core.plugins import PluginRegistry
    from psyche_core.plugins.model_stores import StoreOpener, store_schemes
    from psyche_core.storage.model_stores.url import parse_model_url
    from psyche_core.storage.scratch import default_folder
    from psyche_core.text_safety import printable
    from psyche_core.training.checkpoints import sources
    from psyche_core.training.checkpoints.manifest import read_manifest, total_bytes, verify
    from psyche_core.ui.formatting import bytes_text

    if sum(place is not None for place in (state, run_id, model_store, hub_repo, gcs_bucket)) != 1:
        message = "expected exactly one of --state FILE, --run-id NAME, --model-store URL, --hub-repo NAME and --gcs-bucket NAME"
        raise ConfigError(message)
    if backend is not None and run_id is None:
        message = "--backend needs --run-id, the name of a run"
        raise ConfigError(message)
    if (revision is not None and hub_repo is None) or (gcs_prefix is not None and gcs_bucket is None):
        message = "--revision needs --hub-repo, and --gcs-prefix needs --gcs-bucket"
        raise ConfigError(message)

    registry = PluginRegistry.discover()
    if state is not None:
        checkpoint = load_run_file(state).model.LLM.checkpoint
    elif run_id is not None:
        assert backend is not None, "parse_args adds it"
        checkpoint = _of_run(run_id, backend, registry, of_plugins)
    elif model_store is not None:
        checkpoint = parse_model_url(model_store, schemes=store_schemes(registry)).checkpoint()
    elif hub_repo is not None:
        checkpoint = Choice("Hub", {"repo_id": hub_repo, **({} if revision is None else {"revision": revision})})
    else:
        checkpoint = Choice("Gcs", {"bucket": gcs_bucket, **({} if gcs_prefix is None else {"prefix": gcs_prefix})})

    if eval_tasks is not None:
        from psyche_core.evaluation.harness import TaskSet

        TaskSet([name.strip() for name in eval_tasks.split(",") if name.strip()]).load()
    folder = sources.find(
        checkpoint,
        base=base or (Path.cwd() if state is None else state.parent),
        cache=cache_dir or default_folder(),
        report=lambda sentence: click.echo(printable(sentence), err=True),
        open_store=StoreOpener(registry, of_plugins),
    )
    manifest = read_manifest(folder)
    if manifest is None and not any(folder.iterdir()):
        message = f"{folder} is empty; expected a model in the Hugging Face layout (config.json, *.safetensors)"
        raise NoSuchModel(message)
    if manifest is None:
        click.echo(printable(f"the model is in {folder}"))
        return

    verify(folder, manifest)
    size = bytes_text(total_bytes(manifest))
    what = f"the model of step {manifest.step} of run {printable(manifest.run_id, at_most=64)}"
    click.echo(f"{what} ({size}, verified with its manifest) is in {printable(str(folder))}")


def _of_run(run_id: str, name: str, registry: PluginRegistry, given: dict[str, Any]) -> Choice:
    """The checkpoint of a run that a backend knows: where its first model is, or the one stored last. Raises UserError."""
    import anyio

    from psyche_core.config.options.loading import load_settings
    from psyche_core.coordinator.checkpoints import loaded_from_hub

    backend = registry.load("backend", name)
    if backend.read_model is None:
        message = f"the backend {name} cannot say what a run's model is; use --state FILE or --model-store URL"
        raise ConfigError(message)

    settings = None if backend.settings is None else load_settings(backend.settings, given)
    model = anyio.run(functools.partial(backend.read_model, run_id, settings))
    checkpoint = loaded_from_hub(model).LLM.checkpoint
    if checkpoint != model.LLM.checkpoint:
        click.echo("the run's members have a newer model; this is the one that is stored", err=True)
    return checkpoint
