"""What all conformance classes share: their tests cannot be overridden unnoticed, and optional ones follow declared capabilities.

A subclass that has a test of the same name as one of ours would not test the contract, and nobody would see it. So the class
cannot be made, unless the test is marked as one that is known to fail, which pytest shows each time:

    class TestMine(OptimizerConformance):
        @pytest.mark.xfail(reason="drops what was refused", strict=True)
        def test_work_that_was_not_accepted_is_given_back(self) -> None:
            super().test_work_that_was_not_accepted_is_given_back()

Some tests apply only to a plugin that can do more than it must. They are left out for others, silently, also if the plugin was
meant to. Who declares `capabilities` is told if the plugin has one too many or lacks one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from psyche_core.config.sentences import did_you_mean
from psyche_core.testing.contracts import Contract

_OURS = "psyche_core.testing"


class Conformance:
    """Base of all conformance classes.

    Attributes:
        contract: where it is written what the tests want; a failed test names it.
        capabilities: what the plugin can do beyond what its contract demands, of `optional`; None declares nothing: then optional
            tests run for whatever it shows.
        optional: the capabilities that have tests of their own, with what each means.
    """

    contract: ClassVar[Contract]
    capabilities: ClassVar[frozenset[str] | None] = None
    optional: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise TypeError for a test that is overridden, and for a capability that does not exist."""
        super().__init_subclass__(**options)
        if _is_ours(cls):
            return
        for name, ours in _contract(cls).items():
            definer = next(each for each in cls.__mro__ if name in vars(each))
            if not _is_ours(definer) and not _known_to_fail(vars(definer)[name]):
                message = (
                    f"{definer.__name__} overrides {name} of {ours.__name__}, so the contract would not be tested; give your "
                    "test another name, or mark it with @pytest.mark.xfail(reason=…, strict=True) if the plugin breaks the "
                    "contract"
                )
                raise TypeError(message)
        for capability in sorted(cls.capabilities or ()):
            if capability not in cls.optional:
                known = f"capabilities with tests are {', '.join(cls.optional) or 'none'}"
                message = f"{cls.__name__} declares {capability!r}{did_you_mean(capability, cls.optional)}; {known}"
                raise TypeError(message)

    def compare_capabilities(self, shown: Mapping[str, bool]) -> None:
        """Fail in a sentence if a plugin shows other capabilities than were declared. shown: by name."""
        declared = self.capabilities
        if declared is None:
            return
        name = type(self).__name__
        for capability, there in shown.items():
            told = f"{capability} ({self.optional[capability]})"
            assert there or capability not in declared, f"{name} declares {told}, but the plugin does not show it"
            assert not there or capability in declared, f"the plugin shows {told}; declare it in {name}.capabilities"


def _is_ours(cls: type) -> bool:
    return f"{cls.__module__}.".startswith(f"{_OURS}.")


def _contract(cls: type) -> dict[str, type]:
    """The tests that a class inherits from ours, with the class that has each."""
    return {name: each for each in reversed(cls.__mro__) if _is_ours(each) for name in vars(each) if name.startswith("test")}


def _known_to_fail(test: object) -> bool:
    """Whether a test is marked with a reason why it fails."""
    marks = getattr(test, "pytestmark", ())
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
