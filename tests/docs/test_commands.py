"""Every `psyche` command that a page shows, in a block or in a sentence, exists, and so do its options.

Other tests run the commands of most pages; what they leave out (placeholders, consoles, sentences) is looked up here.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_lines import all_options, known

REPOSITORY = Path(__file__).parents[2]
OTHERS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/psyche-core.md", "docs/policy.md")
PLUGINS = (
    "docs/plugins/using.md",
    "docs/plugins/broken-plugins.md",
    "docs/plugins/new.md",
    "docs/plugins/directory.md",
)  # the README has placeholders
FOLDERS = ("how-to", "tutorial", "plugins/kinds")
PAGES = [
    *(REPOSITORY / name for name in (*OTHERS, *PLUGINS)),
    *(path for folder in FOLDERS for path in sorted((REPOSITORY / "docs" / folder).glob("*.md"))),
]
LEFT_OUT = ("seeds-commands.md", "command_loss_curve/README.md")  # another program's commands; one that is not installed here
WITH_OTHERS = [
    path
    for pattern in ("docs/explanation/*.md", "docs/reference/*.md", "plugins/*/README.md", "examples/**/README.md")
    for path in sorted(REPOSITORY.glob(pattern))
    if not path.as_posix().endswith(LEFT_OUT)
]
"""Pages that also show options of other programs: of benchmarks, tools and plugins that are not installed here."""

WRONG_ON_PURPOSE = ("psyche nonsense",)
SPAN = re.compile(r"`(psyche [^`\n]+|--[a-z][^`\n]*)`")


def shown(page: Path) -> list[str]:
    """Commands of blocks, joined where they go on in the next line, and of sentences; options that stand alone."""
    text = page.read_text()
    found = []
    for kind, block in re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL):
        if kind in ("sh", "console", "bash"):
            lines = block.replace("\\\n", " ").splitlines()
            found += [part.strip() for line in lines for part in line.removeprefix("$ ").split(" && ")]
    found = [re.sub(r"\$\(.*?\)", "MADE", each) for each in found]
    sentences = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found += SPAN.findall(sentences)
    starts = ("psyche ",) if page in WITH_OTHERS else ("psyche ", "--")
    return [each for each in found if each.startswith(starts) and each not in WRONG_ON_PURPOSE]


SHOWN = [(page.relative_to(REPOSITORY).as_posix(), line) for page in PAGES + WITH_OTHERS for line in shown(page)]


def test_there_is_something_to_check() -> None:
    pages = {page for page, _ in SHOWN}
    assert "docs/how-to/solana-own-programs.md" in pages
    assert len(pages) > 8
    assert len(SHOWN) > 60


def options_in(words: list[str]) -> list[str]:
    """The words that are options, without their values."""
    return [word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][a-z0-9-]*(=.*)?", word)]


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=[f"{page.rpartition('/')[2]}: {line}" for page, line in SHOWN])
def test_each_command_and_option_that_a_page_shows_exists(page: str, line: str) -> None:
    words = shlex.split(line)
    while words[1:2] == ["--disable-plugin"]:  # stands before the command
        del words[1:3]
    if "--" in words:  # the rest is for the client that it starts
        end = words.index("--")
        words, passed_on = words[:end], words[end + 1 :]
        assert set(options_in(passed_on)) <= known(["client", "train", "--backend", "solana"])[1], page
    said = options_in(words)
    if words[0] != "psyche":
        assert set(said) <= all_options(), f"{page}: no command has it"
        return

    path, options = known(words[1:])
    assert set(said) <= options | {"--help"}, f"{page}: {path} has no such option"
