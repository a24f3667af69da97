"""The page says what there is."""

import re
from pathlib import Path

from psyche_core.telemetry.metrics import METRICS
from psyche_tracker_tensorboard.settings import TensorboardSettings

PAGE = (Path(__file__).parents[1] / "README.md").read_text()


def test_every_option_and_its_variable_are_on_the_page() -> None:
    rows = re.findall(r"^\| `(--[\w-]+)` \| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    names = list(TensorboardSettings.model_fields)
    assert rows == [(f"--{name.replace('_', '-')}", f"PSYCHE_{name.upper()}") for name in names]


def test_figures_that_are_named_exist() -> None:
    keys = {metric.key for metric in METRICS.values()}
    named = set(re.findall(r"`((?:train|validation)/\w+)`", PAGE))
    assert len(named) > 3
    assert named <= keys
