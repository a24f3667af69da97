"""Hooks of the documentation's site (mkdocs.yml): links from docs/ to other files of the repository.

Pages link to files beside docs/, such as ../../Dockerfile. Those become plain files of the site, below `repository/`. A link to a
file that does not exist stops the build.

Diagrams are drawn by Mermaid, whose script is part of the site: nothing is loaded from elsewhere. Where npm could not install it,
diagrams stay the text that they are.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
FOLDER = "repository"
MERMAID = REPOSITORY / ".venv" / "mermaid" / "mermaid.min.js"
SCRIPT = "assets/mermaid.min.js"
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")


class MissingFileError(Exception):
    """A page links to a file of the repository that does not exist."""


def outside(page: str, link: str) -> str | None:
    """The path in the repository to which a link of a page leads; None if it stays in docs/. page: path below docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") else path


def place(path: str) -> str:
    """Where a file of the repository is on the site. Pages stay as they are written, as text."""
    return f"{FOLDER}/{path}.txt" if path.endswith(".md") else f"{FOLDER}/{path}"


def on_config(config: Any) -> Any:
    """Have pages load our copy of Mermaid; without one, show diagrams as text. The theme would load it from afar."""
    if MERMAID.is_file():
        config.extra_javascript.append(SCRIPT)
    else:
        for fence in config.mdx_configs["pymdownx.superfences"]["custom_fences"]:
            fence["class"] = "diagram"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files to which pages link. Raises MissingFileError."""
    from mkdocs.structure.files import File

    wanted = {}
    for page in files.documentation_pages():
        text = (REPOSITORY / "docs" / page.src_uri).read_text(encoding="utf-8")
        for _, link in _LINK.findall(text):
            path = outside(page.src_uri, link)
            if path is None:
                continue
            if not (REPOSITORY / path).exists():
                message = f"docs/{page.src_uri} links to {path}, which does not exist"
                raise MissingFileError(message)
            wanted[path] = page.src_uri
    for path in sorted(wanted):
        if (REPOSITORY / path).is_file():
            files.append(File.generated(config, place(path), abs_src_path=str(REPOSITORY / path)))
    if MERMAID.is_file():
        files.append(File.generated(config, SCRIPT, abs_src_path=str(MERMAID)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ to the files of the site; a link to a folder becomes its name."""
    source = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        path = outside(source, match[2])
        if path is None or not (REPOSITORY / path).is_file():
            return match[0]
        return f"{match[1]}{posixpath.relpath(place(path), posixpath.dirname(source) or '.')}"

    return _LINK.sub(moved, markdown)
