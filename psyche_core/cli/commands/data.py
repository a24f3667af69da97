"""`psyche data`: make token files from text, and show what is in training data."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psyche_core.cli.lazy import WholeSummaries, example
from psyche_core.errors import ConfigError

if TYPE_CHECKING:
    from psyche_core.data.inspection import Inspection
    from psyche_core.data.text.tokenizing import TokenizedTexts, TokenizeProgress

TOKEN_SIZES: dict[str, int | None] = {"auto": None, "2": 2, "4": 4}
TOKEN_SIZE_NAMES = {2: "TwoBytes", 4: "FourBytes"}
SHOWN_FILES = 40
USUAL_LENGTHS = (2048, 1024, 512, 256, 128, 64)
FEW_SEQUENCES = 1000
"""A proposal of a length that leaves fewer sequences to train on is halved, down to the last of USUAL_LENGTHS."""

PATH = click.Path(path_type=Path)


@click.group(cls=WholeSummaries, context_settings={"max_content_width": 110})
def data() -> None:
    """Make token files from text, and inspect training data."""


@data.command(
    epilog=example(
        "psyche data tokenize books/ notes.jsonl --tokenizer model/ --out corpus --held-out 0.05 --seq-len 512",
        note="Folders are searched for .txt, .md and .jsonl files. Prints what to write in state.toml and data.toml.",
    )
)
@click.argument("texts", nargs=-1, required=True, type=PATH, metavar="TEXT...")
@click.option("--tokenizer", type=PATH, required=True, help="A tokenizer.json, or a folder with one, such as a model's.")
@click.option("--out", type=PATH, required=True, metavar="DIR", help="Folder to create. It appears complete or not at all.")
@click.option(
    "--eos", default="auto", show_default=True, metavar="TOKEN",
    help="End token of every document: a token, its id, none, or auto for the tokenizer's own.",
)  # fmt: skip
@click.option(
    "--token-size", "size_name", type=click.Choice(list(TOKEN_SIZES)), default="auto", show_default=True,
    help="Bytes per token; auto: 2 if the vocabulary fits.",
)  # fmt: skip
@click.option(
    "--held-out", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True, metavar="SHARE",
    help="Share for validation, not training: the end of each text, or whole lines of .jsonl files.",
)  # fmt: skip
@click.option("--seq-len", type=click.IntRange(1, 2**32 - 1), metavar="N", help="Show how many sequences of N tokens there are.")
@click.option("--text-key", default="text", show_default=True, metavar="KEY", help="Key of the text in lines of .jsonl files.")
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Number of threads; does not change the result.  [default: all cores]",
)
@click.option("--overwrite", is_flag=True, help="Replace DIR if this command made it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, for programs.")
def tokenize(
    texts: tuple[Path, ...],
    tokenizer: Path,
    out: Path,
    eos: str,
    size_name: str,
    held_out: float,
    seq_len: int | None,
    text_key: str,
    workers: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make token files from TEXT: files, or folders of them."""
    if workers is not None:  # the tokenizers library reads it at its first use
        os.environ["RAYON_NUM_THREADS"] = str(workers)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

    from psyche_core.data.text.documents import text_paths
    from psyche_core.data.text.tokenizing import tokenize_texts

    paths = text_paths(texts)
    with _progress(hidden=as_json) as progress:
        made = tokenize_texts(
            paths,
            out,
            tokenizer=tokenizer,
            end=eos,
            token_size=TOKEN_SIZES[size_name],
            held_out=held_out,
            text_key=text_key,
            overwrite=overwrite,
            progress=progress,
        )

    if as_json:
        click.echo(json.dumps(_as_json(made, len(paths), seq_len), indent=2))
        return

    _tell(made, len(paths), seq_len)


def _progress(*, hidden: bool) -> AbstractContextManager[Callable[[TokenizeProgress], None] | None]:
    if hidden or not sys.stderr.isatty():
        return nullcontext()

    return _ProgressBar()


class _ProgressBar:
    """A progress bar on standard error: share of the text, tokens, time left."""

    def __enter__(self) -> Callable[[TokenizeProgress], None]:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("tokenizing"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[tokens]:,} tokens"))
        self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._bar.start()
        task = self._bar.add_task("", total=None, tokens=0)

        def show(done: TokenizeProgress) -> None:
            self._bar.update(task, completed=done.size, total=done.total, tokens=done.tokens)

        return show

    def __exit__(self, *rest: object) -> None:
        self._bar.stop()


def _as_json(made: TokenizedTexts, files: int, seq_len: int | None) -> dict[str, Any]:
    return {
        "folder": str(made.folder),
        "files": files,
        "documents": made.documents,
        "tokens": {"train": made.training_tokens, "validation": made.validation_tokens},
        "sequences": None if seq_len is None else made.training_tokens // seq_len,
        "seq_len": seq_len,
        "token_size": made.token_size,
        "vocabulary": made.vocabulary,
        "eos": None if made.end is None else {"token": made.end[0], "id": made.end[1]},
    }


def _tell(made: TokenizedTexts, files: int, seq_len: int | None) -> None:
    length = seq_len or proposed_length(made.training_tokens)
    proposed = "" if seq_len else ", for instance; --seq-len N shows another length"
    size = TOKEN_SIZE_NAMES[made.token_size]
    place = json.dumps(str(made.folder.absolute()), ensure_ascii=False)  # a TOML string too
    held = f", {made.validation_tokens:,} held out" if made.validation_tokens else ""
    end = f"after each {made.end[0]} ({made.end[1]})" if made.end else "nothing after each; name a token with --eos"
    click.echo(
        f"{made.folder}: {made.training_tokens:,} tokens to train on{held}; "
        f"{made.documents:,} documents of {files:,} files, {end}\n"
        f"{made.training_tokens // length:,} sequences of {length} tokens{proposed}\n"
        f"{made.token_size} bytes a token, vocabulary of {made.vocabulary:,}\n\n"
        "For clients that read the folder themselves, in state.toml:\n\n"
        f"  [model.LLM]\n  max_seq_len = {length}\n\n"
        f'  [model.LLM.data_location.Local]\n  location = {place}\n  token_size = "{size}"\n\n'
        "For a server that hands it out, in data.toml:\n\n"
        f'  dir = {place}\n  token_size = "{size}"\n  seq_len = {length}\n  shuffle_seed = {list(os.urandom(32))}'
    )


def proposed_length(tokens: int) -> int:
    """A sequence length with which there are enough sequences, for a run file that says none yet."""
    return next((length for length in USUAL_LENGTHS if tokens // length >= FEW_SEQUENCES), USUAL_LENGTHS[-1])


@data.command(
    epilog=example(
        "psyche data inspect corpus --seq-len 512",
        "psyche data inspect prepared/train-00000.parquet --tokenizer model/ --json",
        note="Exit status 1 if the data has a problem.",
    )
)
@click.argument("place", type=PATH, metavar="PATH")
@click.option("--seq-len", type=click.IntRange(1, 2**32 - 1), metavar="N", help="Count sequences of N tokens.")
@click.option(
    "--tokenizer",
    type=PATH,
    help="Tokenizer for decoding the sample and checking ids. [default: the folder's own tokenizer.json]",
)
@click.option(
    "--token-size", "size_name", type=click.Choice(list(TOKEN_SIZES)), default="auto", show_default=True,
    help="Bytes per token of flat files.",
)  # fmt: skip
@click.option(
    "--sample", "sample_at", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N",
    help="Show a sample from token N on (Parquet: from row N on).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, for programs.")
def inspect(place: Path, seq_len: int | None, tokenizer: Path | None, size_name: str, sample_at: int, as_json: bool) -> int:
    """Show what token files or Parquet files contain: counts, ids, a sample, and problems."""
    from psyche_core.data.inspection import inspect_data

    if not place.exists():
        message = f"{place} does not exist; expected token files, Parquet files, or a folder of them"
        raise ConfigError(message)

    decode, vocabulary = _decoder(place, tokenizer)
    parts = inspect_data(
        place, sequence_length=seq_len, token_size=TOKEN_SIZES[size_name], vocabulary=vocabulary, sample_at=sample_at
    )
    problems = [problem for inspection in parts.values() for problem in inspection.problems]
    if as_json:
        shown = {part or "all": _inspection_json(inspection, decode) for part, inspection in parts.items()}
        click.echo(json.dumps({"path": str(place), "vocabulary": vocabulary, "parts": shown, "problems": problems}, indent=2))
    else:
        _show(place, parts, decode)

    return 1 if problems else 0


def _decoder(place: Path, tokenizer: Path | None) -> tuple[Callable[[list[int]], str] | None, int | None]:
    """A function from ids to text, and the vocabulary size; (None, None) if there is no tokenizer."""
    if tokenizer is None:
        near = [folder / "tokenizer.json" for folder in (place, *place.absolute().parents[:2])]
        tokenizer = next((path for path in near if path.is_file()), None)
        if tokenizer is None:
            return None, None

    from psyche_core.data.text.tokenizer_files import load_tokenizer, tokenizer_path, vocabulary_size

    library = load_tokenizer(tokenizer_path(tokenizer))
    vocabulary = vocabulary_size(library)

    def decode(ids: list[int]) -> str:
        known = [number for number in ids if 0 <= number < vocabulary]
        return str(library.decode(known, skip_special_tokens=False))

    return decode, vocabulary


def _inspection_json(inspection: Inspection, decode: Callable[[list[int]], str] | None) -> dict[str, Any]:
    return {
        "kind": inspection.kind,
        "token_size": inspection.token_size,
        "token_size_from": inspection.token_size_from,
        "tokens": inspection.tokens,
        "sequences": inspection.sequences,
        "ids": inspection.ids,
        "files": [
            {
                "path": str(file.path),
                "bytes": file.size,
                "tokens": file.tokens,
                "sequences": file.sequences,
                "ids": file.ids,
                **({} if file.rows is None else _parquet_json(file)),
            }
            for file in inspection.files
        ],
        "sample": {"ids": inspection.sample, "text": decode(inspection.sample) if decode else None},
        "problems": inspection.problems,
    }


def _parquet_json(file: Any) -> dict[str, Any]:
    return {
        "rows": file.rows,
        "row_groups": file.row_groups,
        "columns": file.columns,
        "row_lengths": file.lengths,
        "unlabelled_share": file.unlabelled,
    }


def _show(place: Path, parts: Mapping[str, Inspection], decode: Callable[[list[int]], str] | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from psyche_core.text_safety import printable

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    for part, inspection in parts.items():
        rows = inspection.kind == "parquet"
        table = Table(box=None, pad_edge=False, header_style="bold", title=part or None, title_justify="left")
        table.add_column("file", overflow="fold")
        for column in ("bytes", "rows" if rows else "tokens", "row length" if rows else "sequences", "lowest id", "highest id"):
            table.add_column(column, justify="right")
        for file in inspection.files[:SHOWN_FILES]:
            count, sequences = (file.rows, _range_text(file.lengths)) if rows else (file.tokens, _number_text(file.sequences))
            low, high = file.ids or (None, None)
            name = str(file.path.relative_to(place)) if file.path != place else file.path.name
            figures = (f"{file.size:,}", _number_text(count), sequences, _number_text(low), _number_text(high))
            table.add_row(Text(printable(name)), *figures)
        console.print(table)
        if len(inspection.files) > SHOWN_FILES:
            console.print(f"… and {len(inspection.files) - SHOWN_FILES} more files")
        console.print(Text(_total(inspection)))
        if inspection.sample:
            console.print("sample:", " ".join(map(str, inspection.sample[:16])), "…" if len(inspection.sample) > 16 else "")
            if decode is not None:
                console.print(Text(_printable(decode(inspection.sample)), style="green"))
        for problem in inspection.problems:
            console.print(Text(printable(f"problem: {problem}"), style="red"))
        console.print()


def _total(inspection: Inspection) -> str:
    low, high = inspection.ids or (0, 0)
    text = f"{len(inspection.files)} files, {inspection.tokens:,} tokens, ids {low} to {high}"
    if inspection.sequences is not None:
        text += f", {inspection.sequences:,} sequences"
    if inspection.token_size is not None:
        text += f"; {inspection.token_size} bytes a token ({inspection.token_size_from})"
    columns = {name: None for file in inspection.files for name in file.columns}
    if columns:
        text += f"; columns {', '.join(columns)}"
    shares = [file.unlabelled for file in inspection.files if file.unlabelled is not None]
    if shares:
        text += f"; {sum(shares) / len(shares):.0%} of the tokens are not predicted"
    return text


def _number_text(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _range_text(numbers: tuple[int, int] | None) -> str:
    if numbers is None:
        return "–"
    return f"{numbers[0]:,}" if numbers[0] == numbers[1] else f"{numbers[0]:,} to {numbers[1]:,}"


def _printable(text: str) -> str:
    """Text made safe for a terminal: control characters cannot move the cursor or change colours."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
