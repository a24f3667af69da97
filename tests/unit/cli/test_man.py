"""Manual pages: all of them are roff without a warning, and say what --help says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from psyche_core.cli import cli, man_pages
from tests.unit.cli.conftest import Psyche

ROOT = man_pages.context_of(cli, "psyche")


def shown(page: str) -> str:
    """A page as `man` shows it, without bold; warnings are errors."""
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-Kutf8", "-P-c", "-rLL=110n"],
        input=page.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stderr.decode() == ""
    return re.sub(r".\x08", "", done.stdout.decode())


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_every_page_is_roff_without_a_warning() -> None:
    found = dict(man_pages.pages(ROOT))
    assert {"psyche", "psyche-client-train", "psyche-testnet-start", "psyche-man", "psyche-run-manager"} <= set(found)
    assert len(found) > 40
    for page in found.values():
        assert shown(page)


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_a_page_says_what_help_says(psyche: Psyche) -> None:
    page = shown(psyche("man", "client", "train").out)
    assert page.startswith("PSYCHE-CLIENT-TRAIN(1)")
    client = cli.get_command(ROOT, "client")
    assert isinstance(client, click.Group)
    command = client.get_command(ROOT, "train")
    assert command is not None
    words = " ".join(page.split())
    for option in command.params:
        assert isinstance(option, click.Option)
        assert option.opts[0] in page
        assert " ".join((option.help or "").split()) in words
    for line in re.findall(r"^  (psyche .*)$", command.epilog or "", flags=re.MULTILINE):
        assert " ".join(line.split()) in words


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
@pytest.mark.parametrize("text", [".hidden by a dot", "'hidden by a quote", r"C:\new\fine", "--dashes-", '"quotes"', " `x` …"])
def test_text_that_roff_would_read_as_its_own_is_shown(text: str) -> None:
    command = click.Command("odd", help=f"First.\n\n\b\n{text}\n{text}", callback=lambda: None)
    lines = shown(man_pages.page(man_pages.context_of(command, "odd"))).splitlines()
    assert [line.strip() for line in lines].count(text.strip()) == 2


def test_all_pages_are_written_into_a_folder(psyche: Psyche, tmp_path: Path) -> None:
    done = psyche("man", "client", "--dir", tmp_path / "man1")
    assert done.code == 0
    names = {path.name for path in (tmp_path / "man1").iterdir()}
    assert {"psyche-client.1", "psyche-client-train.1", "psyche-client-show-identity.1"} <= names
    assert done.out.startswith(f"wrote {len(names)} pages into")
    assert (tmp_path / "man1" / "psyche-client-train.1").read_text() == psyche("man", "client", "train").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), "psyche has no command 'nosuch'; `psyche --help` lists them"),
        (("client", "train", "more"), "psyche client train has no command 'more'"),
        (("--dir", __file__), "cannot write manual pages into"),
    ],
)
def test_what_cannot_be_is_one_sentence(psyche: Psyche, words: tuple[str, ...], said: str) -> None:
    done = psyche("man", *words)
    assert done.code == 2
    assert said in done.err
