"""Every failure of the kit is a sentence, and says where its contract is written."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fork_server import shared
from psyche_core import testing
from psyche_core.hookspecs import KINDS
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS
from psyche_core.testing.pytest_plugin import wanted_by
from psyche_core.testing.sentences import LONGEST, difference, differences, raises, shown

REPOSITORY = Path(__file__).parents[3]
KIT = Path(testing.__path__[0])
PAGE = (REPOSITORY / "docs" / "plugins" / "broken-plugins.md").read_text()
FEWEST_WORDS = 4
"""Fewer words than these, besides values, are no sentence."""

BEGINNING = "wanted"
"""Name of a variable, in the kit, with a sentence's beginning: what the contract wants. Other tests see that it is one."""

BROKEN = """
from contextlib import asynccontextmanager
import torch
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.testing.data import DataConformance
from psyche_core.testing.optimizer import OptimizerConformance
from psyche_core.testing.transport import TransportConformance

class Drifting(AdamW):
    def apply(self, step, payloads, *, learning_rate, own_accepted):
        super().apply(step, payloads, learning_rate=learning_rate, own_accepted=own_accepted)
        if not payloads:
            for master in self.masters.values():
                master.mul_(0.99)

    def check(self, payload):
        return None

class TestDrifting(OptimizerConformance):
    resends_refused = False

    def make_optimizer(self, model):
        return Drifting(AdamWSettings(), model)

class TestUnbuilt(OptimizerConformance):
    def make_optimizer(self, model):
        raise KeyError("decay")

class TestWrong(DataConformance):
    source_can_break = False

    def provider(self, source):
        return DummyData(sequence_length=self.sequence_length)

class Deaf(MemoryTransport):
    async def publish(self, blob, *, tag):
        return bytes(32)

class TestDeaf(TransportConformance):
    @asynccontextmanager
    async def make_mesh(self, count):
        network = MemoryNetwork()
        yield [Deaf(network, bytes([number]) * 32) for number in range(1, count + 1)]

def test_of_ones_own():
    raise AssertionError("nobody's contract")
"""
TOLD = {
    "TestDrifting.test_no_payloads_leave_the_masters": (
        "apply without payloads changed the masters or the public state; a round without accepted results must leave both",
        "An empty round changes nothing, weight decay and public state included.",
        "psyche_core.interfaces.Optimizer, which the documentation explains in docs/plugins/kinds/optimizer.md.",
    ),
    "TestDrifting.test_garbage_is_rejected": (
        "check must raise PayloadRejected for 0 bytes b'', got no exception",
        "Zeros, ones and random bytes of many lengths.",
        "psyche_core.interfaces.Optimizer, which the documentation explains in docs/plugins/kinds/optimizer.md.",
    ),
    "TestUnbuilt.test_garbage_is_rejected": (
        "KeyError: 'decay'",
        "Zeros, ones and random bytes of many lengths.",
        "psyche_core.interfaces.Optimizer, which the documentation explains in docs/plugins/kinds/optimizer.md.",
    ),
    "TestWrong.test_counts_every_whole_sequence": (
        "num_sequences must count every whole sequence of each file and none that is cut off, 13, got ",
        "Counts every whole sequence.",
        "psyche_core.interfaces.DataProvider, which the documentation explains in docs/plugins/kinds/data.md.",
    ),
    "TestDeaf.test_a_blob_is_fetched_and_verified": (
        "publish must return the blob's SHA-256, ",
        "A blob is fetched and verified.",
        "psyche_core.interfaces.Transport, which the documentation explains in docs/plugins/kinds/transport.md.",
    ),
}
"""By test of BROKEN: the failure's sentence, what the test wants, and where it is written."""


def assertions() -> Iterator[tuple[str, ast.Assert]]:
    for path in sorted(KIT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                yield f"{path.relative_to(KIT)}:{node.lineno}", node


def words_of(message: ast.expr | None) -> int:
    """Number of words of a message's own text; enough if that goes on from what the contract wants."""
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    begun = any(isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == BEGINNING for part in parts)
    return len(re.findall(r"[a-z_]+", " ".join(texts))) + (FEWEST_WORDS if begun and texts else 0)


def test_every_assertion_of_the_kit_has_a_sentence() -> None:
    found = list(assertions())
    assert len(found) > 150
    assert [where for where, node in found if words_of(node.msg) < FEWEST_WORDS] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("assert x", 0),
        ("assert x, name", 0),
        ("assert x, f'{name}'", 0),
        ("assert x, f'{name}: {x!r} differs'", 1),
        ("assert x, f'{wanted}'", 0),
    ],
)
def test_a_name_is_no_sentence(text: str, words: int) -> None:
    [node] = ast.parse(text).body
    assert isinstance(node, ast.Assert)
    assert words_of(node.msg) == words < FEWEST_WORDS


def test_what_says_nothing_of_the_contract_is_not_used() -> None:
    """`pytest.raises` says DID NOT RAISE, and `anyio.fail_after` nothing; the kit has `raises` and `within`."""
    used = [
        f"{path.relative_to(KIT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(KIT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("pytest.raises", "anyio.fail_after")
    ]
    assert used == []


def conformance_classes() -> list[type[Conformance]]:
    for module in pkgutil.walk_packages(testing.__path__, "psyche_core.testing."):
        importlib.import_module(module.name)
    found, left = [], [Conformance]
    while left:
        below = left.pop().__subclasses__()
        left += below
        found += [each for each in below if each.__module__.startswith("psyche_core.testing.")]
    return found


def test_every_conformance_class_names_an_interface_and_a_page() -> None:
    classes = conformance_classes()
    assert {"OptimizerConformance", "TransportConformance", "RegistrationConformance"} <= {each.__name__ for each in classes}
    for each in classes:
        pkgutil.resolve_name(each.contract.interface)  # raises where there is no such thing
        assert (REPOSITORY / each.contract.page).is_file(), each
    assert list(CONTRACTS) == list(KINDS)


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pytest prints of each failed test of BROKEN, by class and name: one process for all, forked from one with torch."""
    folder = tmp_path_factory.mktemp("broken")
    file = folder / "test_broken.py"
    file.write_text(BROKEN)
    tests = [f"{file}::{test.replace('.', '::')}" for test in TOLD]
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
    command = ["pytest", *options, *tests, f"{file}::test_of_ones_own"]
    done = shared().run(command, cwd=folder, env=os.environ, timeout=100)
    assert f"{len(TOLD) + 1} failed" in done.stdout, done.stdout
    _, *parts = re.split(r"^_+ ([\w.]+) _+$", done.stdout.partition("short test summary")[0], flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("test", TOLD)
def test_a_failure_says_what_is_wanted_what_came_and_where_it_is_written(failures: dict[str, str], test: str) -> None:
    sentence, wanted, contract = TOLD[test]
    said, _, section = failures[test].partition("- the contract -")
    assert sentence in said
    assert section.strip("-\n").splitlines() == [wanted, f"The contract is {contract}"]


def test_the_page_of_broken_plugins_shows_one() -> None:
    sentence, _, contract = TOLD["TestDrifting.test_garbage_is_rejected"]
    assert f"`{sentence}`" in PAGE
    assert f"`The contract is {contract}`" in PAGE


def test_other_tests_have_no_contract(failures: dict[str, str]) -> None:
    assert "the contract" not in failures["test_of_ones_own"].replace("nobody's contract", "")


def test_what_a_test_wants_is_the_first_sentence_of_its_docstring_or_its_name() -> None:
    def test_the_loss_falls() -> None:
        """By 0.5 at least,
        in ten steps. Not more.
        """

    def test_last_sequence_is_present() -> None: ...

    assert wanted_by(test_the_loss_falls) == "By 0.5 at least, in ten steps."
    assert wanted_by(test_last_sequence_is_present) == "Last sequence is present."


def test_values_are_short() -> None:
    assert shown(b"tokens") == "b'tokens'"
    assert (shown(4.1108733), shown([0.5, None])) == ("4.110873", "[0.5, None]")
    assert shown(bytes(3_000_000)).endswith("… (3000000 bytes)")
    for long in ("x" * 10_000, list(range(10_000)), [b"x" * 1000] * 1000, {f"layer.{number}": number for number in range(1000)}):
        assert 20 < len(shown(long)) <= LONGEST
    assert "\n" not in shown("two\nlines")


def test_how_tensors_differ() -> None:
    torch = pytest.importorskip("torch")
    wanted = torch.zeros(2, 3)
    came = wanted.clone()
    came[0, 1] = 0.5
    assert difference(wanted, came) == "1 of 6 values differ, by up to 0.5"
    assert difference(wanted, came[0]) == "shape (3,) instead of (2, 3)"
    assert difference(wanted, came.double()) == "torch.float64 instead of torch.float32"
    same = {"a": wanted, "b": wanted, "c": wanted}
    assert differences(same, dict(same)) == "no difference"
    assert differences(same, {**same, "b": came, "c": came}) == "b: 1 of 6 values differ, by up to 0.5 (and 1 more tensors)"
    assert differences(same, {"a": wanted}) == "names ['a'] instead of ['a', 'b', 'c']"


def test_an_exception_that_is_wanted_and_does_not_come_is_a_sentence() -> None:
    with raises(ValueError, "read must raise ValueError", match="17") as caught:
        raise ValueError(17)
    assert caught.value.args == (17,)
    for error, told in (
        (KeyError("decay"), "read must raise ValueError, got KeyError: \"'decay'\""),
        (ValueError(18), "read must raise ValueError, with 17 in its text, got the text '18'"),
    ):
        with pytest.raises(AssertionError) as failed, raises(ValueError, "read must raise ValueError", match="17"):
            raise error
        assert str(failed.value) == told
    with (
        pytest.raises(AssertionError, match=r"^read must raise ValueError, got no exception$"),
        raises(ValueError, "read must raise ValueError"),
    ):
        pass
    with pytest.raises(KeyboardInterrupt), raises(ValueError, "read must raise ValueError"):
        raise KeyboardInterrupt
