"""The tutorial: each page is followed from top to bottom in an empty folder, files written, changes made, commands run.

Programs of several processes, and what needs their results, run only where soak tests do; elsewhere they are parsed. `pip
install` puts a project into a folder beside this environment, without an index.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from command_lines import parse

from fork_server import PYTEST, shared

REPOSITORY = Path(__file__).parents[2]
TUTORIAL = REPOSITORY / "docs" / "tutorial"
NAMES = ("first-run", "data-and-model", "embed", "optimizer", "tracker")
FAILS = "# fails"
LONG = ("psyche testnet start", "psyche plugins check", "psyche train-local --state run/state.toml")
OF_A_RUN = ("runs/",)
STAYS = "--web-port"
ELSEWHERE = "--random-kill-num"
"""An option whose commands end-to-end tests run."""
FRESH = "one.py"
"""A script that starts from nothing; others, and what imports torch, are forked."""

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page. title: the file that it is, or changes."""

    language: str
    title: str
    text: str


def blocks(name: str) -> Iterator[Block]:
    page = (TUTORIAL / f"{name}.md").read_text()
    for language, title, text in re.findall(r'```(\w+)(?: title="([^"]+)")?\n(.*?)```', page, flags=re.DOTALL):
        if language != "mermaid":
            yield Block(language, title, text)


@dataclass(slots=True)
class Reader:
    """Somebody who follows a page. thorough: whether long commands are run."""

    folder: Path
    site: Path
    thorough: bool
    done: list[str] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        if block.language == "sh":
            for line in block.text.splitlines():
                self._type(line)
        elif block.language == "diff":
            path = self.folder / block.title
            path.write_text(changed(path.read_text(), block.text))
        else:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)

    def _type(self, line: str) -> None:
        command, fails, _ = line.partition(FAILS)
        words = shlex.split(command)
        match words[0]:
            case "cd":
                self.folder /= words[1]
            case "pip":
                assert words[1:3] == ["install", "-e"]
                options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--upgrade", "--target", str(self.site))
                self._run(["-m", "pip", "install", *options, str(self.folder / words[3].partition("[")[0])])
            case "pytest":
                self._run(["-m", *PYTEST, "-p", "no:cacheprovider", *(["-x"] if fails else [])], fails=bool(fails))
            case "python" if words[1:] == [FRESH]:
                self._run(words[1:])
            case "python":
                (script,) = words[1:]
                self._run(["-m", script.removesuffix(".py")])
            case "psyche":
                long = command.startswith(LONG) and "--no-training" not in words
                if ELSEWHERE not in words and (self.thorough or not (long or any(word.startswith(OF_A_RUN) for word in words))):
                    # pytest, which the pages have right behind it, runs the conformance tests, too
                    less = [] if self.thorough or words[1:3] != ["plugins", "check"] else ["--no-conformance"]
                    self._run(["-m", "psyche_core", *words[1:], *less], stays=STAYS in words)
                else:
                    assert parse(words[1:]), line
            case other:
                pytest.fail(f"say here what `{other}` does")
        self.done.append(line)

    def _run(self, arguments: list[str], *, fails: bool = False, stays: bool = False) -> None:
        """stays: until it is interrupted; then it need not end."""
        path = os.pathsep.join((str(self.folder), str(self.site)))  # the project as it is now, as an editable install has it
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        if arguments[0] == "-m" and arguments[1] != "pip" and not stays:
            done = shared().run(arguments[1:], cwd=self.folder, env=environment, timeout=600)
        else:
            try:
                done = subprocess.run(
                    [sys.executable, *arguments],
                    cwd=self.folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=20 if stays else 600,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                assert stays, arguments
                return
        assert (done.returncode != 0) == fails, f"{shlex.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"


def changed(text: str, difference: str) -> str:
    """A text with the change of one hunk. Its context and its removed lines must be there once."""
    lines = difference.splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] in mark) for mark in (" -", " +"))
    assert text.count(before) == 1, f"there is not one place for:\n{difference}"
    return text.replace(before, after)


def follow(name: str, folder: Path, *, thorough: bool) -> Reader:
    place = folder / "place"
    place.mkdir()
    if name == "first-run":  # in a clone
        (place / "examples").symlink_to(REPOSITORY / "examples")
    reader = Reader(place, folder / "site", thorough)
    for block in blocks(name):
        reader.follow(block)
    return reader


def test_every_page_is_followed() -> None:
    assert {path.stem for path in TUTORIAL.glob("*.md")} == {*NAMES}
    order = re.findall(r"tutorial/([a-z-]+)\.md\)", (REPOSITORY / "docs" / "README.md").read_text())
    assert tuple(order) == NAMES
    for before, after in itertools.pairwise(NAMES):
        assert f"]({after}.md)" in (TUTORIAL / f"{before}.md").read_text()


def test_the_mistake_of_the_optimizer_s_page_gets_the_sentence_that_the_page_quotes() -> None:
    page = " ".join((TUTORIAL / "optimizer.md").read_text().split())
    (quoted,) = re.findall(r"and says why: \*(.*?)\*", page)
    source = (REPOSITORY / "psyche_core" / "testing" / "optimizer" / "conformance.py").read_text()
    assert quoted in " ".join(
        "".join(re.findall(r'"([^"\n]*)"', source.partition("def test_no_payloads_leave_the_masters")[2])).split()
    )


def test_the_first_run_is_the_demo() -> None:
    (block, *_) = blocks("first-run")
    makefile = (REPOSITORY / "Makefile").read_text().replace("\\\n", " ")
    (demo,) = re.findall(r"^demo:.*\n\t(?:\$\(LOOPBACK\) )?\$\(BIN\)/(psyche .*)$", makefile, flags=re.MULTILINE)
    said = shlex.split(block.text)
    assert {*said} - {"runs/first"} <= {*shlex.split(demo)}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in NAMES[:1] else pytest.mark.slow) for name in NAMES])
def test_a_page_can_be_followed(name: str, tmp_path: Path) -> None:
    assert len(follow(name, tmp_path, thorough=False).done) >= 2


@pytest.mark.soak
@pytest.mark.quic
@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_followed_to_the_end(name: str, tmp_path: Path) -> None:
    reader = follow(name, tmp_path, thorough=True)
    if name == "tracker":
        (file,) = (reader.folder / "figures").glob("*.csv")
        assert sum(",train/loss," in line for line in file.read_text().splitlines()) == 5
