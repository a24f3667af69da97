"""Completion in shells: what is offered, in how many imports, and where the scripts go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from psyche_core.cli import cli
from psyche_core.cli.completion import COMPLETE_VARIABLE, SHELLS, place_of, script, shell_of
from psyche_core.errors import UserError
from tests.unit.cli.conftest import Psyche

PROGRAM = Path(sys.executable).parent / "psyche"


def offered(*words: str, shell: str = "bash") -> list[str]:
    """What a shell is offered for the last word."""
    environment = os.environ | {
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        COMPLETE_VARIABLE: f"{shell}_complete",
    }
    code = "from psyche_core.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_commands_are_offered_and_none_is_imported() -> None:
    assert offered("psyche", "test") == ["plain,testnet"]
    assert offered("psyche", "test", shell="zsh")[:2] == ["plain", "testnet"]
    assert "plain,run-manager" in offered("psyche", "r"), "a plugin's command"
    environment = os.environ | {"COMP_WORDS": "psyche t", "COMP_CWORD": "1", COMPLETE_VARIABLE: "bash_complete"}
    code = "import sys\ntry:\n    from psyche_core.cli import main; main()\nexcept SystemExit: print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60)
    modules = done.stdout.splitlines()[-1].split()
    assert [name for name in modules if name.startswith("psyche_core.cli.commands")] == []
    assert "pydantic" not in modules


def test_options_are_offered_those_of_the_chosen_plugins_too() -> None:
    assert offered("psyche", "client", "train", "--optim") == ["plain,--optim-stats-steps"]
    assert offered("psyche", "client", "train", "--logs", "js") == ["plain,json"]
    assert offered("psyche", "client", "train", "--wallet") == [""]
    assert offered("psyche", "client", "train", "--backend", "solana", "--wallet") == ["plain,--wallet-private-key-path"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_s_script_is_shown(psyche: Psyche, shell: str) -> None:
    shown = psyche("--show-completion", shell)
    assert shown.code == 0
    assert shown.out == script(shell, cli)
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in shown.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script("bash", cli))
    typed = 'source "$1"; COMP_WORDS=("$2" client tr); COMP_CWORD=2; _psyche_completion "$2"; printf "%s\n" "${COMPREPLY[@]}"'
    words = ["bash", "--norc", "-c", typed, "bash", str(tmp_path / "script"), str(PROGRAM)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("train\n", "")


def test_installing_writes_one_file_and_says_what_is_left(
    psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    done = psyche("--install-completion")
    assert done.code == 0
    assert "fish reads it by itself. Then start a new shell." in done.out
    assert psyche("--install-completion", "zsh").code == 0
    assert psyche("--install-completion", "bash").code == 0
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {place_of(shell, {}, home=Path()): script(shell, cli) for shell in SHELLS}


def test_folders_of_the_environment_are_used() -> None:
    given = {"XDG_DATA_HOME": "/d", "XDG_CONFIG_HOME": "/c", "ZDOTDIR": "/z"}
    found = [str(place_of(shell, given, home=Path("/home"))) for shell in SHELLS]
    assert found == ["/d/bash-completion/completions/psyche", "/z/.zfunc/_psyche", "/c/fish/completions/psyche.fish"]


@pytest.mark.parametrize(("shell", "said"), [("/bin/tcsh", "your shell is tcsh; name one of"), ("", "does not name your shell")])
def test_an_unknown_shell_is_told(shell: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        shell_of("detect", {"SHELL": shell})


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_only_shells_are_choices(psyche: Psyche, option: str) -> None:
    done = psyche(option, "tcsh")
    assert done.code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'." in done.err
    assert offered("psyche", option, "") == [f"plain,{shell}" for shell in SHELLS]


def test_a_place_that_cannot_be_written_is_one_sentence(psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    done = psyche("--install-completion", "bash")
    assert done.code == 2
    assert "Not a directory; `psyche --show-completion bash` prints" in done.err
