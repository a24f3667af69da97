"""Token files that a data.toml describes and that nobody has made yet: made at first use, as a testnet and a server make them.

The example's are not in the repository, so a command that is told to train on `examples/local_testnet/data` finds nothing there
before the first testnet ran.
"""

from __future__ import annotations

from pathlib import Path

import click

from psyche_core.errors import UserError
from psyche_core.text_safety import printable

DATA_FILE = "data.toml"


def make_missing_tokens(*places: Path | None) -> None:
    """Make the token files of each place that a data.toml beside it describes; nothing for what is there, or is not described.

    places: `dir` of that file, or a part of it such as `validation`. Says on standard error that files are being made. Raises
    DataError if they cannot be made, for instance because the package with the texts is not installed.
    """
    for place in places:
        if place is not None:
            _make(place)


def _make(place: Path) -> None:
    from psyche_core.config.run_config import load_data_file
    from psyche_core.data.text_corpus import MANIFEST, TextProgress, prepare_text

    try:
        there = place.is_file() or (place.is_dir() and any(each.name not in (".lock", MANIFEST) for each in place.iterdir()))
    except OSError:
        return  # whoever reads the files says why that is not possible

    if there:
        return

    for folder in (place, place.parent):
        described = folder.parent / DATA_FILE
        if not described.is_file():
            continue

        data = load_data_file(described)
        if data.text is None or data.dir.absolute() != folder.absolute():
            continue

        package = data.text.package

        def tell(done: TextProgress, *, folder: Path = folder, described: Path = described, package: str = package) -> None:
            if not done.documents:
                text = f"making the token files in {folder} from the texts of {package}, as {described} says"
                click.echo(printable(text), err=True)

        try:
            prepare_text(data, progress=tell)
        except TimeoutError as error:
            raise UserError(str(error)) from error
