"""Headings of options in help texts and manual pages. A field names its own: `Field(json_schema_extra=groups.RUN)`.

With a unit, another name or a short form: `groups.RUN | common.SECONDS`. `option_fields` puts fields in the order of ORDER.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue
from pydantic.fields import FieldInfo

Group = dict[str, JsonValue]


def heading_of(field: FieldInfo) -> str:
    """The heading of a field's option; empty if it has none."""
    extra: Mapping[str, Any] = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return str(extra.get("group", ""))


def place_of(field: FieldInfo) -> int:
    """Place of a field's heading among all; those that are not of this module come last."""
    heading = heading_of(field)
    return ORDER.index(heading) if heading in ORDER else len(ORDER)


def _heading(text: str) -> Group:
    return {"group": text}


RUN = _heading("Run")
MODEL_AND_DATA = _heading("Model and data")
TRAINING = _heading("Training")
MEMBERS = _heading("Members")
NETWORK = _heading("Network")
RELAY = _heading("Relay")
COMPUTE = _heading("Compute")
DEVICES = _heading("Several devices and machines")
CHECKPOINTS = _heading("Checkpoints and journals")
STORE = _heading("Model store")
RECOVERY = _heading("Recovery")
EVALUATION = _heading("Evaluation")
FAULTS = _heading("Faults")
RESULT = _heading("Requirements")
SCREEN = _heading("Screen and logs")
WEB = _heading("Web page")
TELEMETRY = _heading("Metrics and telemetry")
DIAGNOSIS = _heading("Diagnosis")

ORDER = tuple(
    str(each["group"])
    for each in (
        *(RUN, MODEL_AND_DATA, TRAINING, MEMBERS, NETWORK, RELAY, COMPUTE, DEVICES, CHECKPOINTS, STORE, RECOVERY, EVALUATION),
        *(FAULTS, RESULT, SCREEN, WEB, TELEMETRY, DIAGNOSIS),
    )
)
"""All headings of the core's settings, in the order in which they are shown."""
