"""Run the command line in this process, as a user would see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from psyche_core.cli import main


@dataclass(frozen=True, slots=True)
class Result:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


Psyche = Callable[..., Result]


@pytest.fixture
def psyche(capsys: pytest.CaptureFixture[str]) -> Psyche:
    """Call `psyche ARGUMENTS` and get its result."""

    def call(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Result(code, captured.out, captured.err)

    return call
