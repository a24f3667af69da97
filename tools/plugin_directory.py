"""Writes docs/plugins/directory.md: every plugin that the project knows, from psyche_core/plugins/directory.toml.

    python tools/plugin_directory.py --write

Without --write it prints the page. tests/docs/test_plugin_directory.py compares the page with what this makes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from psyche_core.hookspecs import KINDS
from psyche_core.plugins.directory import Entry, directory

PAGE = Path(__file__).parents[1] / "docs" / "plugins" / "directory.md"

INTRODUCTION = """\
# The plugin directory

Every plugin that this project knows, by kind. What the levels promise, and how yours gets here: [the policy](policy.md). Who
names a plugin that is not installed is told which of these it is and what installs it; `psyche plugins list --all` lists them.

This page is written by `tools/plugin_directory.py` from `psyche_core/plugins/directory.toml`.
"""

_TITLES = {
    "backend": "Backends: where the coordinator is",
    "optimizer": "Optimizers",
    "data": "Data",
    "transport": "Transports",
    "model": "Models",
    "sharding": "Sharding engines",
    "relay": "Relays",
    "tracker": "Trackers",
    "store": "Stores of models: by the scheme of a URL",
    "command": "Commands",
}


def page() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, *(line for kind in KINDS for line in _table(kind))])


def _table(kind: str) -> Iterator[str]:
    yield f"## {_TITLES[kind]}\n"
    yield "| name | what it is for | distribution | level | install |\n|---|---|---|---|---|"
    for entry in directory():
        names = [f"`{name}`" for of, name in entry.plugins if of == kind]
        names += [f"`{name}` (adds to ours)" for of, name in entry.extends if of == kind]
        if names:
            yield f"| {', '.join(names)} | {entry.summary} | {_source(entry)} | {entry.level} | `pip install {entry.install}` |"
    yield ""


def _source(entry: Entry) -> str:
    """The distribution's name, as a link to where it is."""
    if entry.source.startswith("https://"):
        return f"[{entry.distribution}]({entry.source})"
    readme = f"{entry.source}/README.md"
    there = (PAGE.parents[2] / readme).is_file()
    return f"[{entry.distribution}](../../{readme})" if there else entry.distribution


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page into docs/")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
