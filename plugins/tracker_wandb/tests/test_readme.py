"""The page says what there is."""

import re
from pathlib import Path

from psyche_core.exporters.tracker_thread import FINISH_SECONDS, QUEUE_EVENTS
from psyche_core.telemetry.metrics import METRICS
from psyche_tracker_wandb.settings import WandbSettings

PAGE = (Path(__file__).parents[1] / "README.md").read_text()


def test_every_option_and_its_variables_are_on_the_page() -> None:
    rows = re.findall(r"^\| `(--[\w-]+)` \| ([^|]+) \|", PAGE, flags=re.MULTILINE)
    told = {option: re.findall(r"`(\w+)`", variables) for option, variables in rows}
    for name, field in WandbSettings.model_fields.items():
        alias = field.validation_alias
        expected = [f"PSYCHE_{name.upper()}"] if alias is None else [str(each) for each in alias.choices]  # type: ignore[union-attr]
        assert told.pop(f"--{name.replace('_', '-')}") == expected
    assert told == {}


def test_figures_that_are_named_exist() -> None:
    named = set(re.findall(r"`((?:train|validation)/\w+)`", PAGE))
    assert len(named) > 3
    assert named <= {metric.key for metric in METRICS.values()}


def test_limits_that_are_named_hold() -> None:
    assert f"{QUEUE_EVENTS:,} events" in PAGE
    assert f"waits {FINISH_SECONDS:.0f} s" in PAGE
