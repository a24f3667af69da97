"""The compiled engine is made from the source with few changes, is refused when it is not compiled, and plays the same runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

from psyche_core.simulator.parallel_runs import RunOptions, one_run
from psyche_core.simulator.script import KINDS

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import compiled_engine
import simulated_seeds
from compiled_engine import CompiledEngineError
from seed_player import PlayerError, Players

SOURCE = '''"""A module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class A:
    location: object = None


@dataclass(slots=True)
class B:
    numbers: tuple[int, ...] = ()


@dataclass(
    slots=True,
    eq=False,
)
class C(B):
    """Inherits a field."""

    limit: ClassVar[int] = 2
    more: int = 1

    def __post_init__(self) -> None:
        assert self.more < self.limit


@dataclass(frozen=True, order=True)
class D:
    first: int
    second: str = "2"
    kind: ClassVar[str] = "d"

    def __post_init__(self) -> None:
        assert self.first


@dataclass(slots=True)
class E:
    made: list[int] = field(default_factory=list)
'''
PREPARED = '''"""A module."""

from __future__ import annotations

from builtins import object as object
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(kw_only=True, unsafe_hash=True, init=False)
class A:
    location: object = None

    def __init__(self, *, location: object = None) -> None:
        self.location = location


@dataclass(init=False)
class B:
    numbers: tuple[int, ...] = ()

    def __init__(self, numbers: tuple[int, ...] = ()) -> None:
        self.numbers = numbers


@dataclass(eq=False)
class C(B):
    """Inherits a field."""

    limit: ClassVar[int] = 2
    more: int = 1

    def __post_init__(self) -> None:
        assert self.more < self.limit


@dataclass(order=True, unsafe_hash=True, init=False)
class D:
    first: int
    second: str = "2"
    kind: ClassVar[str] = "d"

    def __post_init__(self) -> None:
        assert self.first

    def __init__(self, first: int, second: str = '2') -> None:
        self.first = first
        self.second = second
        self.__post_init__()


@dataclass()
class E:
    made: list[int] = field(default_factory=list)
'''


def test_dataclasses_are_prepared_and_object_is_imported_by_name() -> None:
    assert compiled_engine.prepared(SOURCE) == PREPARED


def test_a_prepared_dataclass_is_made_compared_and_hashed_as_before() -> None:
    found = []
    for name, source in (("source", SOURCE), ("prepared", PREPARED)):
        module = ModuleType(name)
        sys.modules[name] = module
        try:
            exec(compile(source, name, "exec"), module.__dict__)
        finally:
            del sys.modules[name]
        one, two = module.D(1), module.D(first=1, second="3")
        found.append((repr(one), repr(module.A(location=2)), one < two, hash(one), hash(two), module.B() == module.B((1,))))
        with pytest.raises(AssertionError):
            module.D(0)
        with pytest.raises(TypeError, match="positional"):
            module.A(2)
    assert found[0] == found[1]


def test_a_module_without_object_stays_as_it_is() -> None:
    assert compiled_engine.prepared("x = 1\n") == "x = 1\n"


def test_the_copy_has_what_a_run_imports_and_no_slots() -> None:
    files = compiled_engine.sources()
    assert {"psyche_core.coordinator.state", "psyche_core.client.machine.machine", "psyche_core.wire.codec"} <= files.keys()
    assert not any("torch" in name or "canonical_image" in name or "runtime" in name for name in files)
    compiled = compiled_engine.to_compile(files)
    assert "psyche_core.simulator.world" in compiled
    assert "psyche_core.simulator.parallel_runs" not in compiled
    assert "psyche_core.config.schema" not in compiled

    copy = compiled_engine.copied(files)
    assert "import" not in copy[Path("psyche_core/__init__.py")].replace("Importing", "")
    for name in compiled:
        assert "slots=True" not in copy[compiled_engine._place_of(name, files[name])], name


def test_the_name_of_the_folder_follows_the_code_and_not_its_docstrings() -> None:
    key = compiled_engine._key
    place = Path("a.py")
    assert key({place: '"""One."""\nx = 1\n'}) == key({place: '"""Two."""\nx = 1  # x\n'}) != key({place: "x = 2\n"})


def test_lost_annotations_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lost.py"
    path.write_text(SOURCE, encoding="utf-8")
    module = ModuleType("lost")
    monkeypatch.setitem(sys.modules, "lost", module)
    exec(compile(SOURCE, path, "exec"), module.__dict__)
    module.B.__annotations__ = {"numbers": tuple}
    compiled_engine.restore_annotations({"lost": path})
    assert get_type_hints(module.B) == {"numbers": tuple[int, ...]}
    assert get_type_hints(module.A) == {"location": object}


def test_a_copy_that_is_not_compiled_is_refused(tmp_path: Path) -> None:
    for path, text in compiled_engine.copied(compiled_engine.sources()).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    with (
        Players(1, compiled=tmp_path) as players,
        pytest.raises(PlayerError, match=r"expected psyche_core\.\S+ compiled in \S+, got \S+\.py; remove that folder"),
    ):
        list(players.play([1]))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with Players(1, compiled=tmp_path) as players, pytest.raises(PlayerError, match="expected psyche_core"):
        list(players.play([1]))


@pytest.mark.soak  # compiles for a while; only tools/simulated_seeds.py uses it
def test_players_play_what_the_simulator_plays() -> None:
    with Players(2) as players:
        played = [run for reply in players.play(range(20)) for run in reply["runs"]]
    assert sorted(run["seed"] for run in played) == list(range(20))
    for run in played[:4]:
        result, found, _ = one_run(RunOptions(kinds=KINDS), run["seed"])
        assert (run["steps"], run["events"], run["broken"]) == (result.steps, result.events, None)
        assert found is None


def test_a_run_that_breaks_only_compiled_is_an_error() -> None:
    with pytest.raises(CompiledEngineError, match=r"seed 1 breaks on the compiled engine \(x: y\) and not on the source"):
        simulated_seeds._found_again(1, "x: y")


@pytest.mark.soak
@pytest.mark.timeout(1800)  # compiling takes minutes
def test_the_compiled_engine_plays_the_same_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulated_seeds, "RECORD", tmp_path / "seeds.csv")
    monkeypatch.setattr(simulated_seeds, "FIRST_SEED", 10_000_196)  # the fourth has a lone liar, the fifth is sealed
    arguments = ["simulated_seeds.py", "--place", str(tmp_path / "engines")]
    monkeypatch.setattr(sys, "argv", [*arguments, "--compare", "12"])
    assert simulated_seeds.main() == 0
    assert "12 of 12 runs are equal" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*arguments, "--runs", "12", "--compiled"])
    assert simulated_seeds.main() == 0
    assert [(row["runs"], row["broken"], row["compiled"]) for row in simulated_seeds.rows()] == [("12", "0", "yes")]
