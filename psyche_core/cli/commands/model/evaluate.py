"""`psyche evaluate`: a model's scores in benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from psyche_core.cli.commands.model.computing_options import computing_options
from psyche_core.cli.lazy import example


def _batch_size(context: click.Context, option: click.Parameter, value: str) -> int | str:
    """A whole number of at least 1, or auto."""
    if value != "auto" and not (value.isdecimal() and int(value) >= 1):
        message = "must be auto or a whole number of at least 1"
        raise click.BadParameter(message, context, option)
    return "auto" if value == "auto" else int(value)


@click.command(
    context_settings={"max_content_width": 110},
    epilog=example(
        "psyche evaluate checkpoints/first-light-step400 --tasks arc_easy,hellaswag --limit 200",
        "psyche evaluate runs/demo/checkpoint --tasks my_task --include-path tasks --json",
        note="Scores are those of `lm_eval --model hf --model_args pretrained=MODEL`. MODEL is as for `psyche generate`. Data "
        "sets come from the Hub and are kept in its cache; HF_HUB_OFFLINE=1 uses only what is there.",
    ),
)
@click.argument("model")
@click.option("--tasks", "--eval-tasks", required=True, help="Tasks of lm-evaluation-harness, separated by commas.")
@click.option(
    "--include-path",
    "include",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder with tasks of your own, as YAML files. Python functions that they name are run.",
)
@click.option(
    "--fewshot",
    "--num-fewshot",
    "shots",
    type=click.IntRange(min=0),
    help="Examples before a question. [default: the task's]",
)
@click.option("--limit", "--max-docs", type=click.IntRange(min=1), help="Most documents of each task.  [default: all]")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Seed of all that is drawn. [default: lm_eval's own]")
@click.option(
    "--batch-size", callback=_batch_size, metavar="N|auto", default="1", show_default=True, help="Documents at a time, or auto."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all metrics.")
@computing_options("auto", "float32", "bfloat16", "float16", help="Number format of the model; auto: the one it is stored in.")
def evaluate(
    model: str,
    tasks: str,
    include: tuple[Path, ...],
    shots: int | None,
    limit: int | None,
    seed: int | None,
    batch_size: int | str,
    as_json: bool,
    device: str,
    compute_dtype: str,
    tokenizer: Path | None,
    torch_threads: int | None,
) -> None:
    """Measure a trained model in benchmarks.

    Needs the extra `eval`: pip install 'psyche-core[eval]'.
    """
    import json

    from psyche_core.errors import InputError

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        message = "--tasks names no task; write for instance --tasks arc_easy,hellaswag"
        raise InputError(message)

    # lm_eval first: its absence is told at once
    from psyche_core.evaluation.harness import TaskSet, open_for_harness, score  # isort: skip
    from psyche_core.evaluation.checkpoint_folders import local_folder, model_folder

    local_folder(model)  # a slip in it is told before all tasks are listed, and one in a task before a model is downloaded
    chosen = TaskSet(names, include=include)
    folder = model_folder(model)
    import torch

    from psyche_core.evaluation.text_model import expect_weights, load_tokenizer
    from psyche_core.models.hf.devices import pick_devices

    if torch_threads is not None:
        torch.set_num_threads(torch_threads)
    expect_weights(folder)
    load_tokenizer(tokenizer or folder)
    chosen.load()
    opened = open_for_harness(
        folder,
        device=str(pick_devices(device)[0]),
        dtype=compute_dtype,
        batch_size=batch_size,
        tokenizer=tokenizer,
        shows=sys.stderr.isatty(),
    )
    scores = score(opened, chosen, shots=shots, limit=limit, seed=seed)
    if as_json:
        found = {
            each.task: {"metrics": each.metrics, "stderr": each.stderr, "documents": each.documents, "shots": each.shots}
            for each in scores
        }
        click.echo(json.dumps(found))
        return

    for each in scores:
        of = "" if each.documents is None else f" of {each.documents} documents"
        values = ", ".join(
            f"{name} {value:.4f}" + (f" ± {each.stderr[name]:.4f}" if name in each.stderr else "")
            for name, value in each.metrics.items()
        )
        click.echo(f"{each.task}{of}: {values}")
