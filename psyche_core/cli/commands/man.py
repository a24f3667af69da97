"""`psyche man`: manual pages, made from the texts of `--help`."""

from __future__ import annotations

from pathlib import Path

import click

from psyche_core.cli.lazy import example
from psyche_core.errors import UserError


@click.command(
    context_settings={"max_content_width": 110},
    epilog=example(
        "psyche man client train > train.1 && man ./train.1",
        "psyche man --dir ~/.local/share/man/man1 && man psyche-client-train",
    ),
)
@click.argument("command", nargs=-1)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="Write the pages of this command and all below it into this folder."
)
@click.pass_context
def man(context: click.Context, command: tuple[str, ...], folder: Path | None) -> None:
    """Print the manual page of a command in the format of man.

    Without a command, that of psyche itself.
    """
    from psyche_core.cli import man_pages

    root = context.find_root()
    found = man_pages.context_of(root.command, "psyche")
    found.obj = root.obj
    for name in command:
        group = found.command
        below = group.get_command(found, name) if isinstance(group, click.Group) else None
        if below is None:
            message = f"{found.command_path} has no command {name!r}; `{found.command_path} --help` lists them"
            raise UserError(message)
        found = man_pages.context_of(below, name, parent=found)
    if folder is None:
        click.echo(man_pages.page(found), nl=False)
        return

    written = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in man_pages.pages(found):
            (folder / f"{name}.1").write_text(text, encoding="utf-8")
            written += 1
    except OSError as error:
        message = f"cannot write manual pages into {folder}: {error.strerror}; give another folder with --dir"
        raise UserError(message) from error

    click.echo(
        f"wrote {written} pages into {folder}; `man {man_pages.page_name(found)}` finds them if man knows the folder above it"
    )
