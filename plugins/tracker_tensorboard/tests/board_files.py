"""Reads what the tracker wrote, with TensorBoard's own reader."""

import re
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import STORE_EVERYTHING_SIZE_GUIDANCE, EventAccumulator

from psyche_core.testing.tracker import Kept


def read(folder: Path) -> Kept:
    """Everything in the folders of all members."""
    kept = Kept()
    for member in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        files = EventAccumulator(str(member), size_guidance=STORE_EVERYTHING_SIZE_GUIDANCE)
        files.Reload()
        for tag in files.Tags()["scalars"]:
            kept.figures |= {(tag, event.step): event.value for event in files.Scalars(tag)}
        for tag in files.Tags()["tensors"]:
            for event in files.Tensors(tag):
                text = event.tensor_proto.string_val[0].decode()
                if tag == "run":
                    rows = [re.split(r"(?<!\\)\|", line)[1:3] for line in text.splitlines()[2:]]
                    kept.config |= {name.strip(): value.strip() for name, value in rows}
                else:
                    kept.texts[tag, event.step] = text
    return kept
