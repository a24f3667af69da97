"""A registration that cannot work is refused when it is made, in one sentence that names plugin, distribution and version."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psyche_core.errors import PluginError, PluginFailed
from psyche_core.hookspecs import GROUP, OptimizerContext, OptimizerRegistration
from psyche_core.plugin_errors import guarded
from psyche_core.plugins import PluginRegistry

CODE = """
from dataclasses import dataclass
from pathlib import Path
from pydantic import BaseModel
from psyche_core.hookspecs import *
from psyche_core.hookspecs import hookimpl

PSYCHE_PLUGIN_API = "1.0"

class Settings(BaseModel):
    decay: float = 0.5

@dataclass
class Plain:
    decay: float = 0.5

async def later(context):
    return None

def create(context):
    return None

@hookimpl
def psyche_register_{hook}():
    return [{registration}]
"""

KINDS: dict[str, tuple[str, str, dict[str, str | None]]] = {
    "optimizer": ("optimizers", "OptimizerRegistration", {"settings": "Settings"}),
    "data": ("data", "DataRegistration", {"settings": "None"}),
    "backend": ("backends", "BackendRegistration", {}),
    "model": ("models", "ModelRegistration", {}),
    "command": ("commands", "CommandRegistration", {"create": None, "load": "lambda: None"}),
    "tracker": ("trackers", "TrackerRegistration", {}),
}


@pytest.fixture
def registry_with(tmp_path: Path) -> Iterator[Callable[..., PluginRegistry]]:
    """The registry of an environment with one more distribution, `odd-plugin 0.3`, whose registration has these arguments."""
    folder = tmp_path / "site"
    folder.mkdir()
    sys.path.insert(0, str(folder))

    def make(kind: str, **arguments: str | None) -> PluginRegistry:
        hook, registration, usual = KINDS[kind]
        given = {"name": "'Odd'", "summary": "'odd'", "create": "create", **usual, **arguments}
        written = ", ".join(f"{key}={value}" for key, value in given.items() if value is not None)
        info = folder / "odd_plugin-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-plugin\nVersion: 0.3\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{kind}.Odd = odd_plugin_hooks\n")
        (folder / "odd_plugin_hooks.py").write_text(CODE.format(hook=hook, registration=f"{registration}({written})"))
        importlib.invalidate_caches()
        return PluginRegistry.discover()

    yield make
    sys.path.remove(str(folder))
    sys.modules.pop("odd_plugin_hooks", None)
    importlib.invalidate_caches()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_is_accepted(registry_with: Callable[..., PluginRegistry], kind: str) -> None:
    assert registry_with(kind).load(kind, "Odd").name == "Odd"


@pytest.mark.parametrize(
    ("kind", "arguments", "problem"),
    [
        ("optimizer", {"settings": "{'decay': 0.5}"},
         "settings must be a pydantic model class, got a dict; write class Settings(BaseModel): … and give settings=Settings"),
        ("optimizer", {"settings": "Settings()"},
         "settings must be a pydantic model class, got an object of Settings; give the class itself, settings=Settings"),
        ("optimizer", {"settings": "Plain"},
         "settings must be a pydantic model class, got the class Plain, which does not inherit from pydantic.BaseModel"),
        ("optimizer", {"settings": "None"},
         "settings must be a pydantic model class, got None; write class Settings(BaseModel): … and give settings=Settings"),
        ("data", {"settings": "[]"},
         ("settings must be a pydantic model class or None, got a list; write class Settings(BaseModel): … and give "
          "settings=Settings")),
        ("data", {"create": "Settings()"}, "create must be a function of one argument, got a Settings"),
        ("data", {"create": "lambda: None"}, "create must be a function of one argument, got <lambda>()"),
        ("data", {"create": "lambda context, *, seed: None"},
         "create must be a function of one argument, got <lambda>(context, *, seed)"),
        ("data", {"create": "later"}, "create must be a plain function, got async def later"),
        ("data", {"create": "None"}, "create must be a function of one argument, got None"),
        ("data", {"summary": "None"}, "summary must be a text, got None"),
        ("data", {"requires": "['torch']"},
         'requires must map modules to what installs them, such as {"torch": "pip install torch"}, got a list'),
        ("backend", {"transport_key": "lambda run_id: None"},
         "transport_key must be a function of 2 arguments, got <lambda>(run_id)"),
        ("backend", {"needs_address": "'no'"}, "needs_address must be True or False, got a str"),
        ("backend", {"testnet": "{}"}, "testnet must be a BackendTestnet or None, got a dict"),
        ("backend", {"testnet": "BackendTestnet(member_options=3)"},
         "member_options must be a function of one argument, got an int"),
        ("model", {"source": "'folder'"}, "source must be a pathlib.Path or None, got a str"),
        ("command", {"load": "lambda name: None"}, "load must be a function of no argument, got <lambda>(name)"),
        ("optimizer", {"create_part": "lambda: None", "divide": "create"},
         "create_part must be a function of one argument, got <lambda>()"),
        ("optimizer", {"create_part": "create"}, "create_part and divide belong together: give both, or neither"),
        ("tracker", {"check": "lambda: None"}, "check must be a function of one argument, got <lambda>()"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_once(
    registry_with: Callable[..., PluginRegistry], kind: str, arguments: dict[str, str], problem: str
) -> None:
    registry = registry_with(kind, **arguments)
    with pytest.raises(PluginError) as caught:
        registry.load(kind, "Odd")
    hook, registration, _ = KINDS[kind]
    assert str(caught.value) == (
        f"the plugin {kind}.Odd (odd-plugin 0.3, module odd_plugin_hooks) cannot be used: psyche_register_{hook} registered "
        f"a{'n' if registration[0] in 'AEIOU' else ''} {registration} that is wrong: {problem}"
    )


def test_a_missing_module_makes_a_plugin_incomplete_without_importing_it(registry_with: Callable[..., PluginRegistry]) -> None:
    registry = registry_with("data", requires="{'json': 'never', 'no_such_module_here': \"pip install 'odd-plugin[fast]'\"}")
    with pytest.raises(PluginError) as caught:
        registry.load("data", "Odd")
    assert str(caught.value).endswith(
        "cannot be used: it needs the module no_such_module_here, which is not installed: pip install 'odd-plugin[fast]'"
    )
    (record,) = [each for each in registry.list() if each.name == "Odd"]
    assert record.status == "incomplete"


def test_deepspeed_is_not_ok_where_deepspeed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    registry = PluginRegistry.discover()
    (record,) = [each for each in registry.inspect_all() if each.entry_point == "sharding.deepspeed"]
    assert record.status == "incomplete"
    assert record.cause == "it needs the module deepspeed, which is not installed: pip install 'psyche-core[deepspeed]'"


class Half:
    def apply(self) -> None: ...


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (None, "None"),
        (Half, "the class Half itself"),
        (
            Half(),
            (
                "an object of Half, which has no check, compress, exact, load_lookahead, load_masters, load_parameters, masters, "
                "max_payload_bytes,"
            ),
        ),
    ],
)
def test_a_factory_that_gives_something_else_is_a_sentence(made: object, told: str) -> None:
    registration = OptimizerRegistration(name="Odd", summary="", settings=None, create=lambda _: made)  # type: ignore[arg-type, return-value]
    checked = guarded(registration, called="the optimizer plugin Odd (odd-plugin 0.3)")
    with pytest.raises(PluginFailed) as caught:
        checked.create(OptimizerContext(settings=None, model=None))  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"the optimizer plugin Odd (odd-plugin 0.3) returned {told} from its create, "
        "expected an object of psyche_core.interfaces.Optimizer"
    )
