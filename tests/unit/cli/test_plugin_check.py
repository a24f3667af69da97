"""`psyche plugins check`: each step's sentence, for a plugin that is right and for one that is wrong in each step."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from psyche_core import __version__, testing
from psyche_core.cli.plugin_check import _CLASSES
from psyche_core.hookspecs import GROUP, KINDS
from psyche_core.plugins.projects import make_project
from tests.unit.cli.conftest import Psyche, Result

HOOKS = """
from pydantic import BaseModel, ConfigDict, Field
from psyche_core.hookspecs import OptimizerRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    decay: float = Field(default=0.5, ge=0, description="How much stays.")

def dummy(model):
    from psyche_core.builtin.dummy_optimizer import DummyOptimizer  # torch; each check imports these hooks in a process
    return DummyOptimizer(model)

@hookimpl
def psyche_register_optimizers():
    return [OptimizerRegistration(
        name="Checked", summary="s", settings=Settings, create=lambda context: dummy(context.model))]
"""


@pytest.fixture(autouse=True)
def what_a_plugin_changes() -> Iterator[None]:
    """Undo what a plugin changed for the whole process: the check imports it here, too."""
    dtype, state = torch.get_default_dtype(), random.getstate()
    yield
    torch.set_default_dtype(dtype)
    random.setstate(state)


Check = Callable[..., tuple[Result, dict[str, tuple[str, str]]]]


@pytest.fixture
def check(psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Check a plugin in whose hooks a text was replaced; gives the result and, by step, outcome and sentence."""
    folder = tmp_path / "site"
    info = folder / "checked-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(f"[{GROUP}]\noptimizer.Checked = checked_plugin_hooks\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))  # for the process that runs the conformance tests

    def run(
        old: str = "", new: str = "", *options: str, requires: str = "psyche-core<0.2,>=0.1"
    ) -> tuple[Result, dict[str, tuple[str, str]]]:
        named = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: checked\nVersion: 1.0\n{named}")
        assert old in HOOKS
        (folder / "checked_plugin_hooks.py").write_text(HOOKS.replace(old, new) if old else HOOKS)
        importlib.invalidate_caches()
        result = psyche("plugins", "check", "Checked", "--json", "--no-training", *options)
        steps = json.loads(result.out)["steps"]
        return result, {step["name"]: (step["outcome"], step["sentence"]) for step in steps}

    yield run
    sys.modules.pop("checked_plugin_hooks", None)
    importlib.invalidate_caches()


def test_a_plugin_that_is_right_but_for_what_it_does(check: Check) -> None:
    """It changes nothing, which the conformance tests find; everything before is in order."""
    result, steps = check()
    outcome, sentence = steps.pop("conformance")
    assert steps == {
        "import": ("ok", "checked_plugin_hooks can be imported"),
        "plugin API": ("ok", "it was written for plugin API 1.0"),
        "registration": ("ok", "psyche_register_optimizers registers OptimizerRegistration Checked"),
        "settings": ("ok", "Settings has 1 keys"),
        "dependencies": ("ok", "1 requirements are installed; works with psyche-core<0.2,>=0.1"),
        "factory": ("ok", "create gives a DummyOptimizer for a model of 9 tensors"),
    }
    assert (result.code, outcome) == (2, "failed")
    assert "tests of psyche_core.testing.optimizer.OptimizerConformance failed: test_" in sentence
    assert "; test_apply_moves_the_masters: apply must move the masters by an accepted payload, and left all of them" in sentence
    assert sentence.endswith(
        "; the contract is psyche_core.interfaces.Optimizer, which the documentation explains in docs/plugins/kinds/optimizer.md"
    )


@pytest.mark.parametrize(
    ("old", "new", "step", "outcome", "sentence"),
    [
        ("PSYCHE_PLUGIN_API", "import nothing_such\nPSYCHE_PLUGIN_API", "import", "failed", "No module named 'nothing_such'"),
        ("PSYCHE_PLUGIN_API", "import os; os._exit(0)\nPSYCHE_PLUGIN_API", "import", "failed",
         "importing it ended the process, with exit status 0"),
        ("PSYCHE_PLUGIN_API", "import random, torch; random.seed(3); torch.set_default_dtype(torch.float64)\nPSYCHE_PLUGIN_API",
         "import", "warning", "changes the state of random, torch's default dtype to torch.float64 for the whole program"),
        ("    return [Opt", "    import os; os._exit(0)\n    return [Opt", "registration", "failed",
         "psyche_register_optimizers called os._exit(0), which would end the whole program"),
        ("def psyche_reg", "async def psyche_reg", "registration", "failed", "must be a plain function, got async def psyche_"),
        ('"1.0"', '"1.9"', "plugin API", "warning", "plugin API 1.9, newer than this core's 1.0: it may call for something that"),
        ('"1.0"', '"2.0"', "plugin API", "failed", "it was written for plugin API 2.0, this core has 1.0"),
        ("settings=Settings", "settings={}", "registration", "failed", "settings must be a pydantic model class, got a dict"),
        ('summary="s"', 'summary="s", requires={"nothing_such": "pip install it"}', "dependencies", "failed", "pip install it"),
        ('extra="forbid"', "", "settings", "warning", "unknown keys are not refused"),
        (', description="How much stays."', "", "settings", "warning", "without a description: decay"),
        ("decay: float =", "decay: object =", "settings", "ok", "Settings has 1 keys"),
        ("default=0.5, ", "", "settings", "ok", "decay must be given"),
        ("default=0.5, ", "", "factory", "skipped", "it needs settings; give them with --settings"),
        ("decay: float = Field(default=0.5, ", 'rate: float = Field(description="r")\n    decay: float = Field(',
         "factory", "skipped", "Checked.rate: missing; this key is required; Checked.decay: missing"),
        ("create=lambda context: ", "create=lambda context: 1 / 0 and ", "factory", "failed", "its create with ZeroDiv"),
        ("dummy(context.model)", "[]", "factory", "failed", "returned an object of list, which has no apply,"),
    ],
)  # fmt: skip
def test_each_step_says_what_is_wrong(check: Check, old: str, new: str, step: str, outcome: str, sentence: str) -> None:
    result, steps = check(old, new, "--no-conformance")
    assert "PluginApiWarning" not in result.err, "the step says it"
    assert steps[step][0] == outcome
    assert sentence in steps[step][1]
    assert result.code == (2 if outcome == "failed" else 0)
    if outcome == "failed" and step in ("import", "plugin API", "registration"):
        assert list(steps)[-1] == step, "what follows needs it"


def test_a_process_that_the_module_leaves_behind_is_not_waited_for(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche_core.cli.plugin_import.IMPORT_SECONDS", 30)  # less than it lives
    left = tmp_path / "left"
    process = "os.posix_spawn(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)'], os.environ)"
    start = f"import os, sys\nwith open({str(left)!r}, 'a') as file:\n    print({process}, file=file)"
    _, steps = check("PSYCHE_PLUGIN_API", f"{start}\nPSYCHE_PLUGIN_API", "--no-conformance")
    assert steps["import"] == ("ok", "checked_plugin_hooks can be imported")
    for process in left.read_text().split():
        os.kill(int(process), signal.SIGKILL)  # it was there all the time
        with contextlib.suppress(ChildProcessError):  # the check imports the module here, too
            os.waitpid(int(process), 0)


@pytest.mark.parametrize(
    ("requires", "outcome", "sentence"),
    [
        ("", "warning", "it does not name psyche-core"),
        ("psyche-core>=0.1", "warning", "psyche-core>=0.1 has no upper bound"),
        ("nothing-such>=3", "failed", "not installed: nothing-such>=3; pip install checked"),
        ("psyche-core<3,>=2.0", "failed", f"checked needs psyche-core<3,>=2.0, and {__version__} is installed; install both in"),
        ('psyche-core<3,>=2.0; python_version < "3"', "ok", "1 requirements are installed"),
    ],
)
def test_what_the_distribution_requires_is_looked_at(check: Check, requires: str, outcome: str, sentence: str) -> None:
    _, steps = check("", "", "--no-conformance", requires=requires)
    assert steps["dependencies"][0] == outcome
    assert steps["dependencies"][1].startswith(sentence)


def test_settings_that_are_given_are_used(check: Check) -> None:
    _, steps = check("default=0.5, ", "", "--no-conformance", "--settings", '{"decay": 0.1}')
    assert steps["settings"] == ("ok", "Settings has 1 keys and accepts what was given")
    assert steps["factory"][0] == "ok"
    result, steps = check("default=0.5, ", "", "--no-conformance", "--settings", '{"decay": -1}')
    assert (result.code, steps["settings"][0]) == (2, "failed")


def test_training_waits_until_what_failed_before_is_mended(psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_core.cli.plugin_check.try_training", None)
    result = psyche("plugins", "check", "AdamW", "--no-conformance", "--settings", '{"eps": -1}')
    assert result.code == 2
    assert result.out.splitlines()[-1] == "skipped  training      first what failed above: settings"


def test_conformance_passes_for_what_conforms(psyche: Psyche) -> None:
    result = psyche("plugins", "check", "optimizer.AdamW", "--drops-refused", "--no-training")
    assert result.code == 0, result.out
    assert "tests of psyche_core.testing.optimizer.OptimizerConformance pass, " in result.out.splitlines()[-1]


@pytest.mark.parametrize("kind", ["data", "tracker"])
def test_a_test_that_only_the_author_can_write_is_named(psyche: Psyche, kind: str) -> None:
    name = {"data": "data.Local", "tracker": "tracker.wandb"}[kind]
    result = psyche("plugins", "check", name, "--no-training")
    assert result.code == 0
    assert result.out.splitlines()[-1].startswith(
        f"skipped  conformance   inherit psyche_core.testing.{_CLASSES[kind]} in a test"
    )


def test_every_kind_has_its_class() -> None:
    assert list(_CLASSES) == list(KINDS)
    for path in _CLASSES.values():
        module, name = path.split(".")
        assert hasattr(importlib.import_module(f"psyche_core.testing.{module}"), name)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("Adam",), "no plugin is named Adam; did you mean AdamW?"),
        (("memory",), "memory may be one of psyche-core:backend.memory, psyche-core:transport.memory; name one of them"),
        (("AdamW", "--settings", "3"), "--settings must be a JSON object, got a int"),
        (("AdamW", "--settings", "{"), "--settings must be a JSON object: "),
        (("HfAuto", "--model-config", "nothing/config.json"), "cannot read nothing/config.json"),
    ],
)
def test_what_cannot_be_checked_is_a_sentence(psyche: Psyche, words: tuple[str, ...], sentence: str) -> None:
    result = psyche("plugins", "check", *words)
    assert result.code == 2
    assert result.err.startswith(f"Error: {sentence}")


def test_without_pytest_the_extra_is_named(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.modules['pytest'] = None\n"
        "try:\n    import psyche_core.testing.data\nexcept ModuleNotFoundError as error:\n    print(error, error.name)\n"
        "import psyche_core.testing.toy_model\n"  # which the simulator uses
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (
        "the conformance classes of psyche_core.testing need pytest; install it with: pip install 'psyche-core[testing]' pytest\n"
    )


def test_a_failed_assertion_of_the_kit_shows_its_values(tmp_path: Path) -> None:
    """With the plugin that pytest finds by its entry point; it was a bare AssertionError."""
    folder = make_project("data", "Texts", out=tmp_path / "project")
    provider = folder / "psyche_data_texts" / "provider.py"
    provider.write_text(provider.read_text().replace("return self._ends[-1]", "return self._ends[-1] + 1"))
    test = "test_counts_every_whole_sequence"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "psyche_core.testing.pytest_plugin",
        "-k",
        test,
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "assert 17 == 16" in done.stdout, done.stdout


def test_every_module_of_the_kit_with_assertions_is_rewritten() -> None:
    folder = Path(testing.__path__[0])
    (value,) = [  # without importing it: these modules are already imported here
        node.value
        for node in ast.parse((folder / "pytest_plugin.py").read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "MODULES"
    ]
    asserting = {
        path.relative_to(folder).parts[0].removesuffix(".py")
        for path in folder.rglob("*.py")
        if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert asserting - {*ast.literal_eval(value)} <= {"tiny_models", "toy_model"}


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["pytest11"].items()
    assert name == module == "psyche_core.testing.pytest_plugin", "so that -p and the entry point are one plugin"


@pytest.mark.parametrize("name", ["MyOpt", "optimizer.MyOpt", "my-opt", "my_opt"])
def test_a_project_that_is_not_installed_is_named(
    psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = psyche("plugins", "check", name).err
    assert f"no plugin is named {name}" in said
    assert "pip install" not in said
    folder = make_project("optimizer", "MyOpt")
    told = psyche("plugins", "check", name)
    assert told.code == 2
    assert f"no plugin is named {name}; the project {folder} is not installed" in told.err
    assert f"pip install -e {folder}\n" in told.err
    monkeypatch.chdir(folder)
    assert "pip install -e .\n" in psyche("plugins", "check", name).err
    assert "pip install" not in psyche("plugins", "check", "Opts").err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("adamw", "did you mean AdamW?"),
        ("adam-w", "did you mean AdamW?"),
        ("optimizer.adamw", "did you mean optimizer.AdamW?"),
        ("psyche-core:adamw", "did you mean AdamW?"),
        ("data.Loca", "did you mean data.Local?"),
        (
            "Jsonl",
            "the data plugin Jsonl is not installed; install it, in a clone of the repository, with: pip install ./examples",
        ),
        ("transport.zork", "; known: memory"),
    ],
)
def test_a_name_that_is_none_gets_the_one_that_was_meant(psyche: Psyche, name: str, told: str) -> None:
    for command in ("check", "show") if name != "Jsonl" else ("check",):
        said = psyche("plugins", command, name)
        assert said.code == 2
        assert told in said.err


def test_a_slip_is_not_taken_for_a_project_that_is_not_installed(
    psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "psyche-optimizer-adamw").mkdir()
    (tmp_path / "psyche-optimizer-adamw" / "pyproject.toml").touch()
    assert "did you mean AdamW?" in psyche("plugins", "check", "adamw").err
