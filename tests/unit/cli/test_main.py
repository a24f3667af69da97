"""Help, version, and how every end becomes a sentence and an exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from psyche_core import __version__
from psyche_core.cli import cli
from psyche_core.cli.failures import Interrupted, describe_failure
from psyche_core.errors import (
    AccessRefused,
    BackendClosed,
    BackendError,
    CommandRefused,
    ConfigError,
    DataError,
    IdentityError,
    InputError,
    NoSuchDevice,
    PluginError,
    UnknownHost,
    UserError,
)
from tests.unit.cli.conftest import Psyche

LEAVES = [
    ("audit",),
    ("bench", "convergence"),
    ("bench", "tune"),
    ("bench", "verification"),
    ("client", "train"),
    ("client", "show-identity"),
    ("client", "status"),
    ("client", "create-identity"),
    ("doctor",),
    ("evaluate",),
    ("generate",),
    ("replay",),
    ("server", "run"),
    ("server", "validate-config"),
    ("testnet", "start"),
    ("data", "inspect"),
    ("data", "tokenize"),
    ("man",),
    ("plugins", "check"),
    ("plugins", "list"),
    ("plugins", "new"),
    ("plugins", "show"),
    ("plugins", "update"),
    ("predownload",),
    ("preview-lr",),
    ("sidecar",),
    ("sim",),
    ("train-local",),
    ("web",),
]


def modules_after(code: str) -> set[str]:
    """Names of the modules a fresh interpreter has imported after running `code`."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit: pass\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_click_and_nothing_of_weight() -> None:
    modules = modules_after("from psyche_core.cli import main; main(['--help'])")
    assert "click" in modules
    heavy = ("torch", "transformers", "numpy", "iroh", "anyio", "pydantic", "rich", "nacl", "asyncio", "pluggy")
    assert [name for name in heavy if name in modules] == []
    ours = sorted(name for name in modules if name.startswith("psyche_core"))
    assert all(
        name.startswith(
            (
                "psyche_core.cli",
                "psyche_core.errors",
                "psyche_core.text_safety",
                "psyche_core.option_groups",
                "psyche_core.__about__",
                "psyche_core.plugin_switches",
            )
        )
        for name in ours[1:]
    ), ours


@pytest.mark.parametrize("group", ["client", "data", "server", "testnet", "plugins", "sim"])
def test_a_group_s_help_and_its_commands_help_load_no_torch(group: str) -> None:
    words = [*next(leaf for leaf in LEAVES if leaf[0] == group), "--help"]
    modules = modules_after(f"from psyche_core.cli import main; main({words})")
    assert not {"torch", "numpy", "iroh"} & modules


def test_version(psyche: Psyche) -> None:
    result = psyche("--version")
    assert (result.code, result.out) == (0, f"psyche {__version__}\n")


def test_every_command_is_in_the_table_of_these_tests() -> None:
    context = click.Context(cli)
    found: list[tuple[str, ...]] = []
    for group_name in cli.own:
        group = cli.get_command(context, group_name)
        assert group is not None
        nested = isinstance(group, click.Group) and not group.invoke_without_command  # else what it has comes from plugins
        inner = group.list_commands(context) if isinstance(group, click.Group) and nested else []
        found += [(group_name, name) for name in inner] or [(group_name,)]
    assert sorted(found) == sorted(LEAVES)


@pytest.mark.parametrize("leaf", LEAVES, ids=" ".join)
def test_every_command_teaches_by_an_example(psyche: Psyche, leaf: tuple[str, ...]) -> None:
    result = psyche(*leaf, "--help")
    assert result.code == 0
    assert f"  psyche {' '.join(leaf)}" in result.out.split("Example:")[1]


def test_short_help_in_the_table_is_the_command_s_own(psyche: Psyche) -> None:
    context = click.Context(cli)
    for name in cli.own:
        command = cli.get_command(context, name)
        assert command is not None
        summary = re.split(r"\.\s", command.help or "")[0].rstrip(".")
        assert summary in " ".join(psyche("--help").out.split())


@pytest.mark.parametrize("group", ["client", "server", "testnet", "bench", "data", "plugins", "doctor"])
def test_a_group_s_help_cuts_no_sentence_off(psyche: Psyche, group: str) -> None:
    text = psyche(group, "--help").out
    assert "..." not in text.partition("Commands:")[2]
    found = cli.get_command(click.Context(cli), group)
    assert isinstance(found, click.Group)
    context = click.Context(found)
    for name in found.list_commands(context):
        command = found.get_command(context, name)
        assert command is not None
        assert f"{name} {command.get_short_help_str(limit=200)}" in " ".join(text.split())


def test_an_unknown_command_is_a_usage_error(psyche: Psyche) -> None:
    result = psyche("cleint")
    assert result.code == 2
    assert "No such command 'cleint'; did you mean client?" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (UserError("mend it"), ("mend it", 2)),
        (ConfigError("a = 1: rule"), ("a = 1: rule", 2)),
        (PluginError("no such"), ("no such", 2)),
        (IdentityError("no key"), ("no key", 2)),
        (BackendError("gone"), ("gone", 1)),
        (BackendClosed("gone for good"), ("gone for good", 1)),
        (DataError("unreadable"), ("unreadable", 1)),
        (CommandRefused("Busy", "full"), ("full", 1)),
        (AccessRefused("WrongRun", "another"), ("another", 2)),
        (UnknownHost("no such host"), ("no such host", 2)),
        (InputError("no texts"), ("no texts", 2)),
        (NoSuchDevice("no GPU"), ("no GPU", 2)),
        (Interrupted(2), ("", 130)),
        (Interrupted(15), ("", 143)),
        (BrokenPipeError(), ("", 1)),
        (ExceptionGroup("tasks", [UserError("inner")]), ("inner", 2)),
        (ExceptionGroup("tasks", [ExceptionGroup("deeper", [BackendError("deep")])]), ("deep", 1)),
        (ValueError("a defect"), None),
        (ExceptionGroup("tasks", [UserError("inner"), KeyError("a defect")]), None),
        (ModuleNotFoundError("No module named 'os2'", name="os2"), None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_how_a_failure_is_described(error: BaseException, described: tuple[str, int] | None) -> None:
    assert describe_failure(error) == described


@pytest.mark.parametrize(("module", "extra"), [("torch", "train"), ("transformers.models", "train"), ("matplotlib", "plot")])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(module: str, extra: str) -> None:
    described = describe_failure(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert described is not None
    assert f"pip install 'psyche-core[{extra}]'" in described[0]
    assert described[1] == 2


def test_a_user_error_is_one_sentence_on_stderr(psyche: Psyche, tmp_path: Path) -> None:
    result = psyche("client", "show-identity", "-i", tmp_path / "none.key")
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("Error: cannot read the identity key")
    assert len(result.err.splitlines()) == 1


def test_a_failure_s_words_are_shown_and_not_obeyed(psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise CommandRefused("Code\x1b[2J", "come closer\r\x1b]0;x\x07 \u202e\nsecond line")

    monkeypatch.setattr("psyche_core.wire.signing.SecretKey.load", refused)
    result = psyche("client", "show-identity", "-i", "some.key")
    assert result.code == 1
    assert all(line.isprintable() for line in result.err.split("\n"))
    assert result.err.startswith("Error: come closer\\r\\x1b]0;x")


def test_a_log_line_is_one_line_whoever_s_words_are_in_it() -> None:
    script = (
        "import logging; from psyche_core.cli.program import log_to_stderr; log_to_stderr()\n"
        "logging.getLogger('psyche.x').warning('the peer said %s', 'a\\x1b[2J\\nb\\u202e')\n"
        "logging.getLogger('asyncio').error('somebody else')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    ours, theirs = done.stderr.splitlines()
    assert ours.isprintable()
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning: the peer said a\\x1b\[2J\\nb\\u202e", ours), "as a display's lines are"
    assert re.fullmatch(r"\d\d:\d\d:\d\d error: asyncio: somebody else", theirs)


def test_a_log_line_goes_where_standard_error_is_now() -> None:
    """A live panel takes its place while it is shown, and puts the lines above itself; otherwise it would be drawn over them."""
    script = (
        "import logging, sys; from psyche_core.cli.program import log_to_stderr; log_to_stderr()\n"
        "sys.stderr = sys.stdout\n"
        "logging.getLogger('psyche.x').warning('shown')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("warning: shown\n")
    assert done.stderr == ""


def test_filters_choose_log_lines_by_logger() -> None:
    script = (
        "import logging; from psyche_core.cli.program import log_to_stderr\n"
        "log_to_stderr('error,psyche.p2p=info,psyche.p2p.x=off,other')\n"
        "for name in ('psyche.p2p.y', 'psyche.client', 'psyche.p2p.x', 'asyncio', 'other'):\n"
        "    for level in ('debug', 'info', 'warning', 'error'):\n"
        "        getattr(logging.getLogger(name), level)(level)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert [line.split(maxsplit=1)[1] for line in done.stderr.splitlines()] == [
        *(f"{level}: psyche.p2p.y: {level}" for level in ("info", "warning", "error")),
        "error: psyche.client: error",
        "error: asyncio: error",
        *(f"{level}: other: {level}" for level in ("debug", "info", "warning", "error")),
    ]


def test_ctrl_c_is_130_without_a_traceback(psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("psyche_core.wire.signing.SecretKey.load", interrupted)
    result = psyche("client", "show-identity", "-i", "some.key")
    assert result.code == 130
    assert "Traceback" not in result.err


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    from psyche_core.cli import main

    monkeypatch.setattr("psyche_core.wire.signing.SecretKey.load", broken)
    with pytest.raises(ZeroDivisionError):
        main(["client", "show-identity", "-i", "some.key"])


FAILING_CLIENT = """
import atexit, os, sys
import psyche_core.client.setup.assemble as assemble
from psyche_core.errors import BackendClosed
from psyche_core.telemetry.events import Ended

async def fail(settings, registry, report, **_):
    report(Ended("the coordinator is gone", success=False))
    raise BackendClosed("the coordinator is gone")

assemble.train_client = fail
from psyche_core.cli import main

command = ["client", "train", "--run-id", "r", "--server-addr", "127.0.0.1:1", "--logs"]
try:
    main([*command, "none"])  # what takes long to import is imported once, for all children
except SystemExit:
    pass

for logs in sys.argv[1:]:
    for out, err in ((f"{logs}.together", f"{logs}.together"), (f"{logs}.out", f"{logs}.err")):
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            continue
        files = {name: os.open(name, os.O_WRONLY | os.O_CREAT, 0o600) for name in (out, err)}
        os.dup2(files[out], 1)
        os.dup2(files[err], 2)
        try:
            main([*command, logs])
        except SystemExit as ended:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ended.code)  # the interpreter's own end takes torch apart for most of a second
"""


def test_a_client_s_failure_is_said_once_wherever_one_looks(tmp_path: Path) -> None:
    """In one log it stood twice: as the client's last line, and as the command's error."""
    modes = ("console", "auto", "json", "none")
    command = [sys.executable, "-c", FAILING_CLIENT, *modes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["1"] * 2 * len(modes)), done.stderr
    for logs in modes:
        together, out, err = ((tmp_path / f"{logs}.{kind}").read_text() for kind in ("together", "out", "err"))
        said = [line for line in together.splitlines() if "the coordinator is gone" in line and '"event"' not in line]
        assert len(said) == 1, logs
        assert err == "Error: the coordinator is gone\n", logs
        assert out.count("the coordinator is gone") == (0 if logs == "none" else 1), logs
