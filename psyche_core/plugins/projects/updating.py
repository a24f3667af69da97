"""Carries an update out.

Each file is written whole or not at all, and the record last: an update that was interrupted is begun again and goes on. What is
replaced stays in a folder of the project, `.psyche-replaced/NUMBER`.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from psyche_core.errors import UserError
from psyche_core.plugins.projects.planning import Change, Plan
from psyche_core.plugins.projects.record import RECORD
from psyche_core.plugins.projects.writing import put_instead, put_new

REPLACED = ".psyche-replaced"


def carry_out(plan: Plan) -> Path | None:
    """Do what a plan says, and return the folder with what was replaced, None if nothing was.

    Raises UserError if a file cannot be written, or was changed since the plan was made; what was done until then stays, and
    another update goes on from there.
    """
    try:
        kept = write_changes(plan.folder, plan.changes)
        if not plan.recorded:
            put_instead(plan.folder / RECORD, plan.record.document())
    except OSError as error:
        message = f"cannot update {plan.folder}: {error.filename}: {error.strerror}; mend that and update again, nothing is lost"
        raise UserError(message) from error

    return kept


def write_changes(folder: Path, changes: tuple[Change, ...]) -> Path | None:
    """Write each change, and return the folder with what was replaced. Raises OSError and UserError."""
    replaced = [change for change in changes if change.outcome == "replaced"]
    kept = _free(folder / REPLACED) if replaced else None
    for change in changes:
        place = folder / change.new
        if not change.new or change.template is None:
            continue
        if change.outcome == "replaced" and kept is not None and change.mine is not None:
            put_new(kept / change.path, change.mine)
            if place.read_bytes() != change.mine:
                message = f"{place} was changed during the update, and is as you left it; update again"
                raise UserError(message)
            put_instead(place, change.template)
        elif not (place.is_file() and place.read_bytes() == change.template):  # a newer text may be there already
            put_new(place, change.template)

    return kept


def _free(folder: Path) -> Path:
    return next(each for number in itertools.count(1) if not (each := folder / str(number)).exists())
