"""`psyche plugins update`: brings a project that `psyche plugins new` made up to date with the present templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psyche_core.cli.lazy import example
from psyche_core.cli.path_options import NonEmptyPath

if TYPE_CHECKING:
    from psyche_core.plugins.projects import Change, Plan

_SILENT = ("kept", "current")
"""Outcomes of files that a reader need not look at."""


@click.command(
    "update",
    epilog=example(
        "psyche plugins update --dry-run",
        "psyche plugins update ../spreadsheet --diff",
        note="A file that you have not changed is replaced, and its old text stays in .psyche-replaced. One that you changed "
        "is left as it is, and the new text is put beside it as FILE.new. Files that the templates no longer have are named "
        "and stay.",
    ),
)
@click.argument("folder", type=NonEmptyPath(path_type=Path), default=Path())
@click.option("--kind", help="For a project made before there were records: the plugin's kind.")
@click.option("--name", help="For such a project: the plugin's name, as its entry point has it.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done; write nothing.")
@click.option("--diff", "show_diff", is_flag=True, help="The same with the lines that would change, as unified diffs.")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object.")
def update_project(folder: Path, *, kind: str | None, name: str | None, dry_run: bool, show_diff: bool, as_json: bool) -> None:
    """Bring the project of a plugin up to date with the templates of this psyche.

    FOLDER is the project's, by default the current one. What you wrote is never changed.
    """
    from psyche_core.plugins.projects import carry_out, plan_update

    plan = plan_update(folder, kind=kind, name=name)
    writes = not (dry_run or show_diff)
    replaced = carry_out(plan) if writes else None
    if as_json:
        click.echo(json.dumps(_document(plan, replaced, written=writes, diffs=show_diff), indent=2))
        return

    for change in plan.changes:
        if change.outcome not in _SILENT:
            _show(change)
        if show_diff:
            click.echo(change.diff(), nl=False)
    click.echo(_summary(plan, replaced, written=writes))


def _document(plan: Plan, replaced: Path | None, *, written: bool, diffs: bool) -> dict[str, Any]:
    return {
        "folder": str(plan.folder),
        "kind": plan.record.answers.kind,
        "name": plan.record.answers.name,
        "from": plan.made_by or None,
        "to": plan.record.version,
        "written": written,
        "replaced_in": None if replaced is None else str(replaced),
        "files": [
            {"path": change.path, "outcome": change.outcome, "new": change.new or None}
            | ({"diff": change.diff()} if diffs else {})
            for change in plan.changes
        ],
    }


def _show(change: Change) -> None:
    from psyche_core.text_safety import printable

    told = {
        "beside": f": you have changed it; the new text is {change.new}",
        "removed": ": you have removed it; it is not made again",
        "left": ": the templates no longer have it; it stays",
    }
    click.echo(printable(f"{change.outcome:<9} {change.path}{told.get(change.outcome, '')}"))


def _summary(plan: Plan, replaced: Path | None, *, written: bool) -> str:
    from psyche_core.text_safety import printable

    count = sum(bool(change.new) for change in plan.changes)
    if not count:
        recorded = "" if plan.recorded else "; its record is written" if written else "; its record would be written"
        return printable(f"{plan.folder} is up to date with the templates of psyche {plan.record.version}{recorded}")

    files = "1 file" if count == 1 else f"{count} files"
    versions = f"{f'from psyche {plan.made_by} ' if plan.made_by else ''}to psyche {plan.record.version}"
    if not written:
        return printable(f"nothing was written; an update {versions} would write {files}")
    told = f"updated {plan.folder} {versions}, {files}"
    if replaced is not None:
        told += f"; what was replaced is in {replaced}"
    if any(change.outcome == "beside" for change in plan.changes):
        told += "; take what you want of each .new file, then remove it"
    return printable(told)
