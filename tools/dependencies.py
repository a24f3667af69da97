"""Print what the distributions of this repository depend on, one requirement a line, without themselves.

    python tools/dependencies.py | uv pip compile --resolution lowest-direct - -o lowest.txt
    make setup CONSTRAINTS=lowest.txt

Extras that no test needs everywhere (`deepspeed`, `fuzz`) are left out.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LEFT_OUT = {"deepspeed", "fuzz"}


def dependencies() -> list[str]:
    """Of the root and of each plugin, with their extras, sorted."""
    found: set[str] = set()
    for path in [REPOSITORY / "pyproject.toml", *REPOSITORY.glob("plugins/*/pyproject.toml")]:
        project = tomllib.loads(path.read_text())["project"]
        found.update(project["dependencies"])
        for extra, wanted in project.get("optional-dependencies", {}).items():
            if extra not in LEFT_OUT:
                found.update(wanted)
    return sorted(each for each in found if not re.match(r"psyche-", each))


if __name__ == "__main__":
    print("\n".join(dependencies()))
