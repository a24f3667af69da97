"""No test of the contract is overridden unnoticed, and declared capabilities are those that a plugin shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_core.testing.data import DataConformance
from psyche_core.testing.optimizer import OptimizerConformance
from psyche_core.testing.tracker import TrackerConformance
from psyche_core.testing.transport import TransportConformance

PAGE = (Path(__file__).parents[3] / "docs" / "plugins" / "broken-plugins.md").read_text()


def test_a_test_of_the_contract_cannot_be_overridden() -> None:
    with pytest.raises(TypeError) as raised:

        class TestMine(DataConformance):
            def test_closing_twice_is_closing_once(self) -> None:  # type: ignore[override]  # as somebody would
                """Nothing."""

    assert f"`{raised.value}`" in PAGE


def test_neither_by_a_class_beside_nor_by_none_nor_further_down() -> None:
    class Quiet:
        def test_apply_moves_the_masters(self) -> None:
            """Nothing."""

    with pytest.raises(TypeError, match="Quiet overrides test_apply_moves_the_masters of OptimizerConformance, so the"):
        type("TestMine", (Quiet, OptimizerConformance), {})
    with pytest.raises(TypeError, match="TestMine overrides test_the_loss_falls of OptimizerConformance"):
        type("TestMine", (OptimizerConformance,), {"test_the_loss_falls": None})
    between = type("Between", (TrackerConformance,), {})
    with pytest.raises(TypeError, match="TestMine overrides test_texts_come_back_as_they_were of TrackerConformance"):
        type("TestMine", (between,), {"test_texts_come_back_as_they_were": lambda _: None})


def test_what_is_known_to_fail_says_why() -> None:
    def known(_: object) -> None:
        """Nothing."""

    with pytest.raises(TypeError, match="overrides"):
        type("TestMine", (TransportConformance,), {"test_small_blobs": pytest.mark.xfail(strict=True)(known)})
    type(
        "TestMine", (TransportConformance,), {"test_small_blobs": pytest.mark.xfail(reason="no empty blobs", strict=True)(known)}
    )


def test_tests_and_fixtures_of_ones_own_are_free() -> None:
    class TestMine(DataConformance):
        @pytest.fixture
        def source(self, token_folder: Path) -> Path:
            return token_folder

        def test_my_own(self) -> None:
            """Nothing."""


def test_a_capability_that_does_not_exist_is_a_sentence() -> None:
    with pytest.raises(TypeError) as raised:
        type("TestMine", (OptimizerConformance,), {"capabilities": frozenset({"exakt"})})
    assert str(raised.value) == (
        "TestMine declares 'exakt'; did you mean exact?; capabilities with tests are exact, public-state, inner-steps"
    )
    with pytest.raises(TypeError, match="capabilities with tests are none"):
        type("TestMine", (DataConformance,), {"capabilities": frozenset({"exact"})})


def test_what_is_declared_and_not_shown_and_what_is_shown_and_not_declared_are_sentences() -> None:
    mine = type("TestMine", (OptimizerConformance,), {"capabilities": frozenset({"exact"})})()
    mine.compare_capabilities({"exact": True, "public-state": False, "inner-steps": False})
    with pytest.raises(AssertionError) as raised:
        mine.compare_capabilities({"exact": False, "public-state": False, "inner-steps": False})
    assert f"`{str(raised.value).splitlines()[0]}`" in PAGE
    with pytest.raises(AssertionError, match=r"the plugin shows inner-steps \(.*\); declare it in TestMine.capabilities"):
        mine.compare_capabilities({"exact": True, "public-state": False, "inner-steps": True})
    type("TestMine", (OptimizerConformance,), {})().compare_capabilities({"exact": False})
