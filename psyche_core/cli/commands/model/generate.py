"""`psyche generate`: text that a model writes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from psyche_core.cli.commands.model.computing_options import computing_options
from psyche_core.cli.lazy import example


@click.command(
    context_settings={"max_content_width": 110},
    epilog=example(
        'psyche generate runs/demo/checkpoint --prompt "ROMEO:" --temperature 0.8',
        'psyche generate checkpoints --prompt "Once upon a time" --prompt "The king" --max-new-tokens 40 --json',
        "echo 'To be, or not to be' | psyche generate checkpoints/first-light-step400",
        note="MODEL is a folder that transformers can read, such as every checkpoint; a folder of one run's checkpoints, of "
        "which the newest is taken; or a repository of the Hub (owner/name).",
    ),
)
@click.argument("model")
@click.option(
    "-p", "--prompt", "prompts", multiple=True, help="Text to continue; may be given several times. - reads standard input."
)
@click.option(
    "--prompt-file", type=click.Path(path_type=Path, dir_okay=False), help="File of prompts, one a line; empty lines are skipped."
)
@click.option("-n", "--max-new-tokens", default=128, show_default=True, type=click.IntRange(min=1), help="Most tokens to write.")
@click.option(
    "-t",
    "--temperature",
    type=click.FloatRange(min=0),
    help="0: always the likeliest token; 1: draw with the model's probabilities; between: likely tokens are likelier.  "
    "[default: 0, or 1 with --top-k or --top-p]",
)
@click.option("--top-k", type=click.IntRange(min=1), help="Draw from this many of the likeliest tokens only.")
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Draw only from the likeliest tokens that together have this probability.",
)
@click.option(
    "--seed",
    default=42,
    show_default=True,
    type=click.IntRange(0, 2**63 - 1),
    help="Seed of what is drawn; each prompt begins with it.",
)
@click.option("--chat", is_flag=True, help="The prompt is a message of a conversation, for models trained for these.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a prompt, when its text is complete.")
@computing_options("float32", "bfloat16", "float16", help="Number format of the model.")
def generate(
    model: str,
    prompts: tuple[str, ...],
    prompt_file: Path | None,
    max_new_tokens: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    chat: bool,
    as_json: bool,
    device: str,
    compute_dtype: str,
    tokenizer: Path | None,
    torch_threads: int | None,
) -> None:
    """Write text with a trained model: continue each prompt.

    Words are shown as they come. Without --prompt, standard input is the prompt.
    """
    texts = _prompts(prompts, prompt_file)
    import dataclasses
    import json

    from psyche_core.evaluation.checkpoint_folders import model_folder
    from psyche_core.text_safety import printable_lines

    folder = model_folder(model)
    import torch

    from psyche_core.evaluation.generation import write
    from psyche_core.evaluation.sampling import Sampling
    from psyche_core.evaluation.text_model import open_text_model

    if torch_threads is not None:
        torch.set_num_threads(torch_threads)
    if temperature is None:
        temperature = 0.0 if top_k is None and top_p is None else 1.0
    sampling = Sampling(temperature, top_k=top_k or 0, top_p=top_p or 1.0, seed=seed)
    opened = open_text_model(folder, device=device, dtype=compute_dtype, tokenizer=tokenizer)

    def show(piece: str) -> None:
        click.echo(printable_lines(piece), nl=False)  # a model may write any character
        sys.stdout.flush()

    for number, text in enumerate(texts):
        if not as_json:
            click.echo(("\n" if number else "") + click.style(printable_lines(text), bold=True), nl=False)
        written = write(
            opened, text, sampling=sampling, max_new_tokens=max_new_tokens, chat=chat, on_text=None if as_json else show
        )
        click.echo(json.dumps(dataclasses.asdict(written), ensure_ascii=False) if as_json else "")


def _prompts(given: tuple[str, ...], file: Path | None) -> list[str]:
    """The prompts in the order of the command line; standard input if there are none. Raises InputError."""
    from psyche_core.errors import InputError

    texts = [_standard_input() if text == "-" else text for text in given]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read the prompts in {file}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
            raise InputError(message) from error
        texts += [line for line in lines if line.strip()]
        if not texts:
            message = f"{file} holds no prompt; write one a line"
            raise InputError(message)
    if texts:
        return texts
    if sys.stdin.isatty():
        message = "give a text to continue with --prompt TEXT, or on standard input"
        raise InputError(message)
    return [_standard_input()]


def _standard_input() -> str:
    from psyche_core.errors import InputError

    try:
        return sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        message = "standard input is not UTF-8 text"
        raise InputError(message) from error
