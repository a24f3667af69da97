"""The page says what there is."""

import re
from pathlib import Path

from psyche_core.exporters.tracker_thread import FINISH_SECONDS
from psyche_core.telemetry.metrics import METRICS
from psyche_tracker_mlflow import api, settings, tracker
from psyche_tracker_mlflow.settings import MlflowSettings

PAGE = (Path(__file__).parents[1] / "README.md").read_text()
PROSE = " ".join(PAGE.split())


def test_every_option_and_its_variables_are_on_the_page() -> None:
    rows = re.findall(r"^\| `(--[\w-]+)` \| ([^|]+) \|", PAGE, flags=re.MULTILINE)
    told = {option: re.findall(r"`(\w+)`", variables) for option, variables in rows}
    for name, field in MlflowSettings.model_fields.items():
        expected = [str(each) for each in field.validation_alias.choices]  # type: ignore[union-attr]
        assert expected[0] == f"PSYCHE_{name.upper()}"
        assert told.pop(f"--{name.replace('_', '-')}") == expected
    assert told == {}


def test_variables_with_credentials_are_on_the_page() -> None:
    assert {f"`{name}`" for name in (settings.USERNAME, settings.PASSWORD, settings.TOKEN)} <= set(re.findall(r"`\w+`", PAGE))


def test_figures_that_are_named_exist() -> None:
    named = set(re.findall(r"`((?:train|validation)/\w+)`", PAGE))
    assert len(named) > 3
    assert named <= {metric.key for metric in METRICS.values()}


def test_limits_that_are_named_hold() -> None:
    assert f"{tracker.WAITING_METRICS:,} values" in PROSE
    assert f"{api.MAX_TAG:,} characters" in PROSE
    assert f"after {tracker.FIRST_PAUSE:.0f} to {tracker.LONGEST_PAUSE:.0f} s" in PROSE
    assert f"waits {FINISH_SECONDS:.0f} s" in PROSE
    requests_at_the_end = 3  # figures, the reason, the status
    assert tracker.FINISH_SECONDS + requests_at_the_end * tracker.REQUEST_AT_END < FINISH_SECONDS
