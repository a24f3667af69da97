"""The HTML of the pages. Each file in `assets` has the content of `<main>`; `layout.html` has everything around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

ASSETS: Final = Path(__file__).parent / "assets"

_CHART_STYLES: Final = '    <link rel="stylesheet" href="assets/uPlot.min.css">\n'
_CHART_SCRIPTS: Final = '    <script src="assets/uPlot.iife.min.js" defer></script>\n'


@dataclass(frozen=True, slots=True)
class Page:
    """A page. path: below the application's own path. name: of its files in `assets`. charts: whether it shows charts."""

    path: str
    name: str
    title: str
    charts: bool = False

    def html(self) -> str:
        """Return the complete page."""
        layout = Template((ASSETS / "layout.html").read_text(encoding="utf-8"))
        return layout.substitute(
            name=self.name,
            title=self.title,
            styles=_CHART_STYLES if self.charts else "",
            scripts=_CHART_SCRIPTS if self.charts else "",
            main=(ASSETS / f"{self.name}.html").read_text(encoding="utf-8"),
        )


PAGES: Final = (
    Page("/", "index", "Runs"),
    Page("/run", "run", "Run", charts=True),
    Page("/member", "member", "Member", charts=True),
    Page("/login", "login", "Token"),
)
