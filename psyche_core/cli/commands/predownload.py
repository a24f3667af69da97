"""`psyche predownload`: get a run's model before joining, so that the warmup is not spent on the download."""

from __future__ import annotations

from pathlib import Path

import click

from psyche_core.cli.lazy import example
from psyche_core.errors import ConfigError, NoSuchModel


@click.command(
    epilog=example(
        "psyche predownload --state state.toml",
        "psyche predownload --model-store hf://HuggingFaceTB/SmolLM2-135M",
        "psyche predownload --model-store gs://my-bucket/runs/first-light-step400",
        note="What is there already is not downloaded again. A private repository or bucket needs its usual credentials "
        "(HF_TOKEN, GOOGLE_APPLICATION_CREDENTIALS, AWS_ACCESS_KEY_ID, …).",
    )
)
@click.option("--state", type=click.Path(path_type=Path), help="Run file (state.toml) whose checkpoint to get.")
@click.option("--model-store", help="URL of the model: hf://OWNER/NAME[@REVISION], gs:// or s3://BUCKET/PREFIX, file:///FOLDER.")
@click.option("--hub-repo", help="Repository of the Hub, or a local folder.")
@click.option("--revision", help="Commit, branch or tag of that repository.")
@click.option("--gcs-bucket", help="Bucket of Google Cloud Storage; s3://NAME for one of S3.")
@click.option("--gcs-prefix", help="Folder of the checkpoint in that bucket.")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Folder for downloads of buckets; the system's cache folder.")
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="Folder that a relative path starts from; that of --state FILE, else where we are.",
)
def predownload(
    state: Path | None,
    model_store: str | None,
    hub_repo: str | None,
    revision: str | None,
    gcs_bucket: str | None,
    gcs_prefix: str | None,
    cache_dir: Path | None,
    base: Path | None,
) -> None:
    """Get a model now, whole and checked, so that joining its run later starts at once."""
    from psyche_core.config.run_config import Choice, load_run_file
    from psyche_core.config.sentences import printable
    from psyche_core.storage.model_url import parse_model_url
    from psyche_core.storage.scratch import default_folder
    from psyche_core.training.checkpoints import sources
    from psyche_core.training.checkpoints.manifest import read_manifest, total_bytes, verify
    from psyche_core.ui.formatting import bytes_text

    if sum(place is not None for place in (state, model_store, hub_repo, gcs_bucket)) != 1:
        message = "say which model: one of --state FILE, --model-store URL, --hub-repo NAME and --gcs-bucket NAME"
        raise ConfigError(message)
    if (revision is not None and hub_repo is None) or (gcs_prefix is not None and gcs_bucket is None):
        message = "--revision belongs to --hub-repo, and --gcs-prefix to --gcs-bucket"
        raise ConfigError(message)

    if state is not None:
        checkpoint = load_run_file(state).model.LLM.checkpoint
    elif model_store is not None:
        checkpoint = parse_model_url(model_store).checkpoint()
    elif hub_repo is not None:
        checkpoint = Choice("Hub", {"repo_id": hub_repo, **({} if revision is None else {"revision": revision})})
    else:
        checkpoint = Choice("Gcs", {"bucket": gcs_bucket, **({} if gcs_prefix is None else {"prefix": gcs_prefix})})

    folder = sources.find(
        checkpoint,
        base=base or (Path.cwd() if state is None else state.parent),
        cache=cache_dir or default_folder(),
        tell=lambda sentence: click.echo(printable(sentence), err=True),
    )
    manifest = read_manifest(folder)
    if manifest is None and not any(folder.iterdir()):
        message = f"{folder} is empty; expected a model as Hugging Face lays it out (config.json, *.safetensors)"
        raise NoSuchModel(message)
    if manifest is None:
        click.echo(printable(f"the model is in {folder}"))
        return

    verify(folder, manifest)
    size = bytes_text(total_bytes(manifest))
    what = f"the model of step {manifest.step} of run {printable(manifest.run_id, at_most=64)}"
    click.echo(f"{what} ({size}, every byte as its manifest says) is in {printable(str(folder))}")
