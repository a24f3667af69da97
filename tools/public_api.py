"""Write the public API down, a line for each name, and find what an earlier version had and this one has not.

    python tools/public_api.py            print the lines
    python tools/public_api.py --write    keep them in docs/reference/public-api.txt, at a release
    python tools/public_api.py --check    exit status 1 where a line of that file is gone and `changelog.d` announces no break

What is public is said in docs/policy.md. The source is read (griffe), not run, so that the same lines come out with and without
torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "docs" / "reference" / "public-api.txt"
MODULES = ("psyche_core", "psyche_core.errors", "psyche_core.hookspecs", "psyche_core.interfaces", "psyche_core.telemetry.events")
"""Modules whose public names are public. `psyche_core.testing` has classes of tests, of which only the names are."""


def lines() -> list[str]:
    """The public API, sorted, each name once."""
    package = griffe.load("psyche_core", search_paths=[ROOT], try_relative_path=False, resolve_aliases=True)
    found = {line for module in MODULES for line in _module(package, module)}
    testing = package["testing"]
    found |= {
        f"class {thing.path}" for module in testing.modules.values() for thing in module.classes.values() if thing.is_public
    }
    return sorted(found)


def broken() -> list[str]:
    """Lines of the last release that are gone or others now."""
    now = set(lines())
    return [line for line in KEPT.read_text(encoding="utf-8").splitlines() if line not in now]


def announced() -> list[Path]:
    """What the next release's notes say about breaks."""
    return sorted((ROOT / "changelog.d").glob("*.breaking*.md"))


def _module(package: Any, path: str) -> Iterator[str]:
    module = package if path == "psyche_core" else package[path.removeprefix("psyche_core.")]
    exports = {str(name) for name in module.exports or ()}
    for name, member in module.members.items():
        if (name in exports) if exports else (member.is_public and not member.is_alias):
            yield from _thing(f"{path}.{name}", member)


def _thing(path: str, thing: Any) -> Iterator[str]:
    """The lines of a name. path: as its users write it."""
    if thing.is_alias:
        thing = thing.final_target
    if thing.is_class:
        yield f"class {path}({', '.join(str(base) for base in thing.bases)})"
        for name, member in thing.members.items():
            if not member.is_alias and (not name.startswith("_") or name in ("__init__", "__aenter__", "__aiter__")):
                yield from _thing(f"{path}.{name}", member)
    elif thing.is_function:
        yield f"def {path}({', '.join(_parameters(thing))}) -> {thing.returns}"
    elif thing.is_attribute:
        yield f"{path}: {thing.annotation}{'' if thing.value is None else ' = …'}"
    else:
        yield f"module {path}"


def _parameters(function: griffe.Function) -> Iterator[str]:
    starred = False
    for parameter in function.parameters:
        kind = parameter.kind
        if kind is griffe.ParameterKind.var_positional:
            starred = True
        elif kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            yield "*"
        prefix = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        annotation = "" if parameter.annotation is None else f": {parameter.annotation}"
        default = "" if parameter.default is None or prefix else f" = {parameter.default}"
        yield f"{prefix}{parameter.name}{annotation}{default}"


def main(arguments: list[str]) -> int:
    """The command."""
    if arguments == ["--write"]:
        KEPT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    elif arguments == ["--check"]:
        gone = broken()
        if gone and not announced():
            print("The public API lost or changed these lines of the last release, and no changelog.d/*.breaking.md says so:")
            print("\n".join(gone))
            return 1
    elif arguments:
        print(__doc__, file=sys.stderr)
        return 2
    else:
        print("\n".join(lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
