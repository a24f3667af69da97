"""Finding, loading and explaining plugins, with real throw-away distributions on sys.path."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from psyche_core.config.run_config import parse_run_file
from psyche_core.errors import ConfigError, PluginError, PluginMissing
from psyche_core.hookspecs import GROUP, OptimizerRegistration
from psyche_core.plugins import (
    PluginApiWarning,
    PluginRecord,
    PluginRegistry,
    check_run_file_plugins,
    validate_settings,
)
from psyche_core.plugins import directory as plugin_directory
from psyche_core.plugins.directory import parsed
from psyche_core.plugins.loading import imported

Install = Callable[..., None]

OPTIMIZERS = """
from pydantic import BaseModel, ConfigDict
from psyche_core.hookspecs import {kind_class}, hookimpl

PSYCHE_PLUGIN_API = {api!r}

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    decay: float
    chunk: int = 64

@hookimpl
def {hook}():
    return [{kind_class}(name=name, summary="the " + name, {settings}create=lambda *context: None) for name in {names!r}]
"""


def module(*names: str, api: object = "1.0", kind: str = "optimizer") -> str:
    kind_class, hook, settings = {
        "optimizer": ("OptimizerRegistration", "psyche_register_optimizers", "settings=Settings, "),
        "data": ("DataRegistration", "psyche_register_data", "settings=None, "),
        "model": ("ModelRegistration", "psyche_register_models", ""),
    }[kind]
    return OPTIMIZERS.format(names=names, api=api, kind_class=kind_class, hook=hook, settings=settings)


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Write a distribution (metadata, entry points, one module) where importlib.metadata and import find it."""
    folder = tmp_path / "site"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    before = set(sys.modules)

    def write(distribution: str, entry_points: dict[str, str], *, code: str | None = None, version: str = "1.0") -> None:
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = "\n".join(f"{name} = {value}" for name, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}\n")
        if code is not None:
            (folder / f"{next(iter(entry_points.values()))}.py").write_text(code)
        importlib.invalidate_caches()

    yield write
    sys.path.remove(str(folder))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    importlib.invalidate_caches()


def discover(tmp_path: Path, **options: Any) -> PluginRegistry:
    """The registry of the throw-away distributions only."""
    found = [point for each in distributions(path=[str(tmp_path / "site")]) for point in each.entry_points.select(group=GROUP)]
    return PluginRegistry.discover(entry_points=found, **options)


def record(registry: PluginRegistry, entry_point: str) -> PluginRecord:
    (only,) = (each for each in registry.list() if each.entry_point == entry_point)
    return only


def test_installed_distributions_are_found_without_help(install: Install) -> None:
    install("throwaway-wide", {"optimizer.ThrowawayWide": "throwaway_wide"}, code=module("ThrowawayWide"))
    registry = PluginRegistry.discover()

    assert record(registry, "optimizer.ThrowawayWide").distribution == "throwaway-wide"
    assert registry.load("optimizer", "ThrowawayWide").name == "ThrowawayWide"


def test_reading_names_imports_nothing(install: Install, tmp_path: Path) -> None:
    install("lazy", {"optimizer.Lazy": "lazy_plugin"}, code=module("Lazy"))
    install("bomb", {"optimizer.Bomb": "bomb_plugin"}, code="raise SystemExit(7)")
    registry = discover(tmp_path)

    assert record(registry, "optimizer.Lazy") == PluginRecord(
        kind="optimizer", name="Lazy", distribution="lazy", version="1.0", module="lazy_plugin", status="not loaded"
    )
    assert "lazy_plugin" not in sys.modules
    registry.load("optimizer", "Lazy")
    assert "lazy_plugin" in sys.modules
    assert "bomb_plugin" not in sys.modules
    assert record(registry, "optimizer.Lazy").status == "ok"
    assert record(registry, "optimizer.Lazy").summary == "the Lazy"
    assert record(registry, "optimizer.Lazy").api == "1.0"


def test_a_registration_is_made_once(install: Install, tmp_path: Path) -> None:
    install("once", {"optimizer.Once": "once_plugin"}, code=module("Once"))
    registry = discover(tmp_path)

    assert registry.load("optimizer", "Once") is registry.load("optimizer", "Once")


def test_one_module_may_bring_several_names_and_kinds(install: Install, tmp_path: Path) -> None:
    code = module("A", "B") + module("M", kind="model")
    install("many", {"optimizer.A": "many_plugin", "optimizer.B": "many_plugin", "model.M": "many_plugin"}, code=code)
    registry = discover(tmp_path)

    assert [registry.load("optimizer", name).name for name in "AB"] == ["A", "B"]
    assert registry.load("model", "M").name == "M"


@pytest.mark.parametrize(("code", "cause", "chained"), [
    ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'", ModuleNotFoundError),
    ("raise RuntimeError('no luck')", "importing it failed with RuntimeError: no luck", RuntimeError),
    ("raise SystemExit(3)", "importing it failed with SystemExit: 3", SystemExit),
    ("def broken(:", "importing it failed with SyntaxError", SyntaxError),
    ("PSYCHE_PLUGIN_API = '1.0'", "its module has no @hookimpl function psyche_register_optimizers", Exception),
    (module("Other"), "psyche_register_optimizers must register Bad exactly once, got Other", Exception),
    (module(), "psyche_register_optimizers must register Bad exactly once, got nothing", Exception),
    (module("Bad", "Bad"), "psyche_register_optimizers must register Bad exactly once, got Bad, Bad", Exception),
    (module("Bad").replace("return [", "return 3 #"), "must return a list of OptimizerRegistration, got int", Exception),
    (module("Bad").replace("return [", "return None #"), "must return a list of OptimizerRegistration, got NoneType", Exception),
    (module("Bad").replace("return [", "return [{'name': 'Bad'}] #"),
     "must return a list of OptimizerRegistration, got one with a dict in it", Exception),
    (module("Bad").replace("return [", "raise KeyError('k') #"),
     "psyche_register_optimizers failed with KeyError: 'k'", KeyError),
    (module("Bad").replace("psyche_register_optimizers", "psyche_register_optimisers"), "unknown hook", Exception),
    (module("Bad").replace("optimizers()", "optimizers(extra)"),
     "psyche_register_optimizers failed with PluginValidation", Exception),
    (module("Bad", kind="data").replace("register_data", "register_optimizers"), "list of OptimizerRegistration", Exception),
])  # fmt: skip
def test_a_broken_plugin_names_itself_and_its_cause_and_harms_nobody(
    install: Install, tmp_path: Path, code: str, cause: str, chained: type[BaseException]
) -> None:
    install("bad-plugin", {"optimizer.Bad": "bad_plugin"}, code=code, version="0.3")
    install("good-plugin", {"optimizer.Good": "good_plugin"}, code=module("Good"))
    registry = discover(tmp_path)

    for _ in range(2):  # the second time it is remembered, and as clear
        with pytest.raises(PluginError) as caught:
            registry.load("optimizer", "Bad")
        assert "the plugin optimizer.Bad (bad-plugin 0.3, module bad_plugin) cannot be used: " in str(caught.value)
        assert cause in str(caught.value)
        assert isinstance(caught.value.__cause__, chained)

    assert record(registry, "optimizer.Bad").status == "failed"
    assert cause in record(registry, "optimizer.Bad").cause
    assert registry.load("optimizer", "Good").name == "Good"


def test_inspecting_all_isolates_failures(install: Install, tmp_path: Path) -> None:
    install("bad-plugin", {"optimizer.Bad": "bad_plugin"}, code="1/0")
    install("good-plugin", {"optimizer.Good": "good_plugin"}, code=module("Good"))
    install("old-plugin", {"optimizer.Old": "old_plugin"}, code=module("Old", api="0.9"))
    install("twin-one", {"optimizer.Twin": "twin_one"}, code=module("Twin"))
    install("twin-two", {"optimizer.Twin": "twin_two"}, code=module("Twin"))
    install("odd-plugin", {"nonsense": "odd_plugin", "colour.Red": "odd_plugin"}, code=module())
    found = discover(tmp_path, disabled=["optimizer.Off"]).inspect_all()

    assert [(each.entry_point, each.status) for each in found] == [
        ("colour.Red", "failed"),
        ("nonsense", "failed"),
        ("optimizer.Bad", "failed"),
        ("optimizer.Good", "ok"),
        ("optimizer.Old", "incompatible"),
        ("optimizer.Twin", "duplicate"),
        ("optimizer.Twin", "duplicate"),
    ]
    assert "<kind>.<Name> with a kind among backend, optimizer, data, transport, model" in found[0].cause
    assert "odd_plugin" not in sys.modules


@pytest.mark.parametrize(("api", "cause"), [
    ("0.9", "it was written for plugin API 0.9, this core has 1.0; upgrade bad-plugin"),
    ("2.0", "it was written for plugin API 2.0, this core has 1.0; upgrade psyche-core"),
    ("one", "its module must define PSYCHE_PLUGIN_API = \"1.0\", got 'one'"),
    (None, 'its module must define PSYCHE_PLUGIN_API = "1.0", got None'),
    ((1, 0), 'its module must define PSYCHE_PLUGIN_API = "1.0", got (1, 0)'),
])  # fmt: skip
def test_another_api_is_incompatible(install: Install, tmp_path: Path, api: object, cause: str) -> None:
    install("bad-plugin", {"optimizer.Bad": "bad_plugin"}, code=module("Bad", api=api))
    registry = discover(tmp_path)

    with pytest.raises(PluginError) as caught:
        registry.load("optimizer", "Bad")
    assert str(caught.value).endswith(cause)
    assert record(registry, "optimizer.Bad").status == "incompatible"


def test_a_newer_minor_api_is_a_warning(install: Install, tmp_path: Path) -> None:
    install("new-plugin", {"optimizer.New": "new_plugin"}, code=module("New", api="1.7"))
    registry = discover(tmp_path)

    with pytest.warns(PluginApiWarning, match=r"optimizer\.New \(new-plugin 1\.0\) was written for plugin API 1\.7"):
        assert registry.load("optimizer", "New").name == "New"
    assert record(registry, "optimizer.New").api == "1.7"


def test_a_name_of_two_distributions_is_an_error_for_who_chooses_it(install: Install, tmp_path: Path) -> None:
    install("twin-one", {"optimizer.Twin": "twin_one", "optimizer.Single": "twin_one"}, code=module("Twin", "Single"))
    install("twin-two", {"optimizer.Twin": "twin_two"}, code=module("Twin"), version="2.0")
    registry = discover(tmp_path)

    both = (
        "twin-one 1.0 and twin-two 2.0 both provide optimizer.Twin; uninstall or disable one of them, or name the one you mean: "
        "twin-one:Twin or twin-two:Twin"
    )
    with pytest.raises(PluginError, match=f"the optimizer plugin Twin is ambiguous: {both}"):
        registry.load("optimizer", "Twin")
    assert registry.load("optimizer", "Single").name == "Single"
    assert "twin_two" not in sys.modules

    assert registry.load("optimizer", "Twin_Two:Twin").name == "Twin", "names of distributions are compared as indexes do"
    assert registry.load("optimizer", "twin-two:Twin") is registry.load("optimizer", "twin-two:Twin")
    assert "twin_one" in sys.modules, "of Single"
    assert [(each.distribution, each.status) for each in registry.list() if each.name == "Twin"] == [
        ("twin-one", "shadowed"),
        ("twin-two", "ok"),
    ]
    with pytest.raises(PluginError, match=r"^twin-three provides no optimizer plugin Twin; it comes from twin-one and twin-two$"):
        registry.load("optimizer", "twin-three:Twin")

    chosen = discover(tmp_path, disabled=["twin-one"])
    assert chosen.load("optimizer", "Twin").name == "Twin"
    assert "twin_two" in sys.modules


def test_plugins_can_be_disabled_or_chosen(install: Install, tmp_path: Path) -> None:
    install("pair", {"optimizer.A": "pair_plugin", "optimizer.B": "pair_plugin"}, code=module("A", "B"))

    for registry in (discover(tmp_path, disabled=["optimizer.A"]), discover(tmp_path, only=["optimizer.B"])):
        assert [each.status for each in registry.list()] == ["disabled", "not loaded"]
        with pytest.raises(PluginError, match=r"plugin A \(pair 1.0\) is disabled \(.+\); enable optimizer\.A to use it"):
            registry.load("optimizer", "A")
        assert registry.load("optimizer", "B").name == "B"


@pytest.mark.parametrize(("kind", "name", "extra"), [
    ("backend", "tcp", "tcp"),
    ("optimizer", "Distro", "distro"),
    ("optimizer", "SparseLoCo", "sparseloco"),
    ("data", "Server", "tcp"),
    ("data", "Http", "http"),
    ("transport", "quic", "quic"),
    ("relay", "iroh", "quic"),
    ("command", "relay", "quic"),
])  # fmt: skip
def test_a_missing_first_party_plugin_names_its_extra(kind: str, name: str, extra: str) -> None:
    with pytest.raises(PluginError) as caught:
        PluginRegistry.discover(entry_points=[]).load(kind, name)
    assert f"pip install 'psyche-core[{extra}]'" in str(caught.value)
    assert f"installed {kind} plugins: none" in str(caught.value)


def test_a_misspelt_name_gets_the_nearest_and_what_there_is(install: Install, tmp_path: Path) -> None:
    install("some", {"optimizer.Sophia": "some_plugin", "optimizer.Muon": "some_plugin"}, code=module("Sophia", "Muon"))
    registry = discover(tmp_path)

    there = "installed optimizer plugins: Muon, Sophia"
    known = (
        "also known: Distro (pip install 'psyche-core[distro]'), SparseLoCo (pip install 'psyche-core[sparseloco]'), "
        "LionVote (in a clone of the repository: pip install ./examples/plugins/optimizer_majority_vote)"
    )
    for name, told in {
        "Sofia": f"did you mean Sophia?; {there}",
        "MUON": f"did you mean Muon?; {there}",
        "DisTrO": f"did you mean Distro? (pip install 'psyche-core[distro]'); {there}",
        "Zzzz": f"{there}; {known}",
    }.items():
        with pytest.raises(PluginError) as caught:
            registry.load("optimizer", name)
        assert str(caught.value) == f"no optimizer plugin is named {name}; {told}"


def test_what_only_examples_are_called_is_no_evidence_of_a_slip() -> None:
    """A server that does not have a third party's plugin hosts the run, although an example has a similar name."""
    registry = PluginRegistry.discover(entry_points=[])
    with pytest.raises(PluginMissing, match=r"did you mean Jsonl\? \(in a clone of the repository: pip install \./examples"):
        registry.load("data", "Json")
    with pytest.raises(PluginError, match=r"did you mean Http\?") as caught:
        registry.load("data", "Htpp")
    assert not isinstance(caught.value, PluginMissing)


def test_a_plugin_of_the_directory_that_is_not_ours_says_how_it_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    [[plugin]]
    distribution = "psyche-optimizer-sophia"
    plugins = ["optimizer.Sophia"]
    summary = "second-order steps"
    level = "LEVEL"
    source = "https://example.org/sophia"
    """
    for level, told in {"listed": ", not tested by this project, with", "verified": " with"}.items():
        (entry,) = parsed(text.replace("LEVEL", level))
        monkeypatch.setattr(plugin_directory, "directory", lambda entry=entry: (entry,))
        with pytest.raises(PluginMissing) as caught:
            PluginRegistry.discover(entry_points=[]).load("optimizer", "Sophia")
        assert f"Sophia is not installed; install it{told}: pip install psyche-optimizer-sophia (" in str(caught.value)


def test_a_kind_that_does_not_exist_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="kind must be one of backend, optimizer"):
        PluginRegistry.discover(entry_points=[]).load("colour", "Red")


def test_a_distribution_with_broken_metadata_stops_nobody(install: Install, tmp_path: Path) -> None:
    install("torn", {"optimizer.Torn": "torn_plugin"}, code=module("Torn"))
    install("good", {"optimizer.Good": "good_plugin"}, code=module("Good"))
    (tmp_path / "site" / "torn-1.0.dist-info" / "METADATA").unlink()

    registry = PluginRegistry.discover()
    assert registry.load("optimizer", "Good").name == "Good"
    assert registry.load("optimizer", "Torn").name == "Torn"
    assert record(registry, "optimizer.Torn").distribution == "unknown distribution"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    decay: float
    chunk: int = 64


class _Lax(BaseModel):
    decay: float


def optimizer(settings: type[BaseModel]) -> OptimizerRegistration:
    return OptimizerRegistration(name="Foo", summary="", settings=settings, create=lambda *_: SimpleNamespace())  # type: ignore[arg-type]


def test_settings_become_the_plugins_own_model() -> None:
    validated = validate_settings(optimizer(_Strict), {"decay": 0.5}, where="o.Foo")

    assert validated == _Strict(decay=0.5)


@pytest.mark.parametrize(("model", "settings", "sentence"), [
    (_Strict, {"decay": 0.5, "chnk": 3}, "o.Foo.chnk: unknown key; did you mean chunk?"),
    (_Lax, {"decay": 0.5, "dekay": 3}, "o.Foo.dekay: unknown key; did you mean decay?"),
    (_Strict, None, "o.Foo.decay: missing; this key is required"),
    (_Strict, {"decay": "much"}, 'o.Foo.decay = "much": must be a valid number, unable to parse string as a number'),
])  # fmt: skip
def test_bad_settings_are_sentences(model: type[BaseModel], settings: dict[str, Any] | None, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_settings(optimizer(model), settings, where="o.Foo")
    assert str(caught.value) == sentence


def test_a_plugin_without_settings_takes_none(install: Install, tmp_path: Path) -> None:
    install("plain", {"data.Plain": "plain_plugin"}, code=module("Plain", kind="data"))
    registration = discover(tmp_path).load("data", "Plain")

    assert validate_settings(registration, None, where="d.Plain") is None
    assert validate_settings(registration, {}, where="d.Plain") is None
    with pytest.raises(ConfigError, match=r"^d\.Plain: Plain takes no settings, got size$"):
        validate_settings(registration, {"size": 1}, where="d.Plain")


RUN = """
run_id = "test"
[config]
warmup_time = 30
cooldown_time = 5
epoch_time = 60
max_round_train_time = 15
round_witness_time = 2
min_clients = 1
init_min_clients = 1
verification_percent = 0
witness_nodes = 1
global_batch_size_start = 4
global_batch_size_end = 8
global_batch_size_warmup_tokens = 0
total_steps = 10
waiting_for_members_extra_time = 3
[model.LLM]
architecture = "Mine"
data_type = "Pretraining"
max_seq_len = 512
cold_start_warmup_steps = 0
data_location = "Plain"
checkpoint.Hub.repo_id = "a/b"
lr_schedule.Constant = {base_lr = 1e-3, warmup_init_lr = 0.0, warmup_steps = 0}
optimizer.Foo.decay = 0.5
"""


@pytest.fixture
def mine(install: Install, tmp_path: Path) -> PluginRegistry:
    code = module("Foo") + module("Plain", kind="data") + module("Mine", kind="model")
    install("mine", {"optimizer.Foo": "mine_plugin", "data.Plain": "mine_plugin", "model.Mine": "mine_plugin"}, code=code)
    return discover(tmp_path)


def test_a_run_file_of_third_party_plugins_is_accepted(mine: PluginRegistry) -> None:
    check_run_file_plugins(parse_run_file(RUN, source="state.toml"), mine)

    assert {each.status for each in mine.list()} == {"ok"}


def test_a_run_that_checks_shares_needs_an_optimizer_that_can_be_checked(mine: PluginRegistry) -> None:
    text = RUN.replace("verification_percent = 0", "verification_percent = 10")
    with pytest.raises(ConfigError) as raised:
        check_run_file_plugins(parse_run_file(text, source="state.toml"), mine)
    assert str(raised.value) == (
        "config.verification_percent = 10: what Foo trains with these settings cannot be checked: its plugin does not say that "
        "others can recompute it; set it to 0 or change the optimizer's settings"
    )


def test_a_plugin_that_only_others_need_is_no_problem_but_a_slip_is(mine: PluginRegistry) -> None:
    """The settings of those that are here are checked all the same."""
    elsewhere = parse_run_file(RUN.replace('"Mine"', '"Zebra"').replace('"Plain"', '{Server = "h:1"}'), source="state.toml")
    here = "so it is not checked here, but by every member, each of which needs it"
    model, data = check_run_file_plugins(elsewhere, mine, elsewhere=True)
    assert model.startswith(
        "model.LLM.architecture = Zebra: no model plugin is named Zebra; installed model plugins: Mine; also known: "
    )
    assert model.endswith(here)
    assert data == (
        "model.LLM.data_location = Server: the data plugin Server is not installed; install it with: "
        f"pip install 'psyche-core[tcp]' (installed data plugins: Plain); {here}"
    )
    with pytest.raises(ConfigError, match="Zebra: no model plugin is named Zebra"):
        check_run_file_plugins(elsewhere, mine)
    slip = parse_run_file(RUN.replace('"Mine"', '"Mina"').replace("Foo.decay", "Foo.dekay"), source="state.toml")
    with pytest.raises(ConfigError, match="did you mean Mine") as raised:
        check_run_file_plugins(slip, mine, elsewhere=True)
    assert "dekay" in str(raised.value)
    for variant in ("Mine2", "Mine8bit", "MineX", "Mine-fast"):
        named = parse_run_file(RUN.replace('"Mine"', f'"{variant}"'), source="state.toml")
        assert check_run_file_plugins(named, mine, elsewhere=True)[0].startswith(
            f"model.LLM.architecture = {variant}: no model plugin is named {variant}; did you mean Mine?"
        )


@pytest.mark.parametrize("checkpoint", ["Gcs", "P2PGcs"])
def test_a_model_in_a_plugins_store_needs_that_plugin(mine: PluginRegistry, checkpoint: str) -> None:
    text = RUN.replace('checkpoint.Hub.repo_id = "a/b"', f'checkpoint.{checkpoint}.bucket = "dav://models.example.org/runs"')
    run_file = parse_run_file(text, source="state.toml")
    with pytest.raises(ConfigError) as caught:
        check_run_file_plugins(run_file, mine)
    told = f"model.LLM.checkpoint.{checkpoint}.bucket = dav: the store plugin dav is not installed; "
    assert str(caught.value).startswith(told)
    [unchecked] = check_run_file_plugins(run_file, mine, elsewhere=True)
    assert unchecked.startswith(told)
    for own in ("models", "s3://models"):
        text = RUN.replace('checkpoint.Hub.repo_id = "a/b"', f'checkpoint.{checkpoint}.bucket = "{own}"')
        assert check_run_file_plugins(parse_run_file(text, source="state.toml"), mine) == ()


def test_every_problem_with_plugins_of_a_run_file_is_told(mine: PluginRegistry) -> None:
    text = RUN.replace('"Mine"', '"Mina"').replace('"Plain"', '{Server = "h:1"}').replace("Foo.decay = 0.5", "Foo.dekay = 0.5")
    with pytest.raises(ConfigError) as caught:
        check_run_file_plugins(parse_run_file(text, source="state.toml"), mine)

    assert str(caught.value).splitlines() == [
        "model.LLM.architecture = Mina: no model plugin is named Mina; did you mean Mine?; installed model plugins: Mine",
        (
            "model.LLM.data_location = Server: the data plugin Server is not installed; "
            "install it with: pip install 'psyche-core[tcp]' (installed data plugins: Plain)"
        ),
        "model.LLM.optimizer.Foo.decay: missing; this key is required",
        "model.LLM.optimizer.Foo.dekay: unknown key; did you mean decay?",
    ]


def test_standard_output_is_the_same_after_plugins_are_imported_in_threads(install: Install) -> None:
    """The first begins first and ends first; if both were at work at once, the second would leave what it found."""
    began, second_began, first_done = threading.Event(), threading.Event(), threading.Event()
    sys.modules["meeting_point"] = SimpleNamespace(  # type: ignore[assignment]
        first=lambda: (began.set(), second_began.wait(1)), second=lambda: (second_began.set(), first_done.wait(60))
    )
    names = ("first", "second")
    for name in names:
        install(f"psyche-{name}", {f"optimizer.{name}": f"{name}_of_two"}, code=f"import meeting_point\nmeeting_point.{name}()\n")

    def load(name: str) -> None:
        module = f"{name}_of_two"
        imported(PluginRecord(kind="optimizer", name=name, distribution=module, version="1.0", module=module, status="ok"))
        if name == "first":
            first_done.set()

    output = sys.stdout
    threads = [threading.Thread(target=load, args=(name,)) for name in names]
    threads[0].start()
    assert began.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert sys.stdout is output
    assert sys.modules.pop("meeting_point")
