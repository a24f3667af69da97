"""The tracker: figures as scalars, texts and the run's settings as texts, written with TensorBoard's own writer.

Keys are TensorBoard's tags, so `train/loss` is in the section `train`. A client that starts again writes another file into the
same folder, which TensorBoard shows as one curve.
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from psyche_core.interfaces import TrackedRun, Tracker
from psyche_tracker_tensorboard.settings import TensorboardSettings

RUN_TAG = "run"
"""Tag of the run's settings, a table at step 0."""

_TEXT_PLUGIN = "text"


class TensorboardTracker(Tracker):
    """Writes into `FOLDER/RUN-MEMBER`. Raises OSError as files do."""

    def __init__(self, run: TrackedRun, settings: TensorboardSettings) -> None:
        folder = settings.tensorboard_dir / folder_name(run.name)
        folder.mkdir(parents=True, exist_ok=True)
        self._path: Path = folder
        self._writer = EventFileWriter(str(folder))
        rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in run.config.items())
        self.log_text(0, RUN_TAG, f"| setting | value |\n|---|---|\n{rows}", time=clock.time())

    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        """A scalar for each figure."""
        values = [Summary.Value(tag=key, simple_value=value) for key, value in figures.items()]
        self._write(Event(wall_time=time, step=step, summary=Summary(value=values)))

    def log_text(self, step: int, key: str, text: str, *, time: float) -> None:
        """A text of TensorBoard's plugin for texts."""
        tensor = TensorProto(
            dtype=DT_STRING,
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
            string_val=[text.encode(errors="replace")],
        )
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=_TEXT_PLUGIN))
        value = Summary.Value(tag=key, metadata=metadata, tensor=tensor)
        self._write(Event(wall_time=time, step=step, summary=Summary(value=[value])))

    def finish(self, *, success: bool, reason: str) -> None:  # noqa: ARG002  # TensorBoard has no place for it
        """Close the file."""
        self._writer.close()

    def _write(self, event: Event) -> None:
        """Write at once: a client may be killed, and figures come once a step only."""
        self._writer.add_event(event)
        self._writer.flush()


def folder_name(name: str) -> str:
    """A member's name as the name of one folder, whatever characters it has."""
    quoted = quote(name, safe=" ")
    return quoted.replace(".", "%2E") if name.strip(".") == "" else quoted


def _cell(value: object) -> str:
    """A value in a table of Markdown."""
    return str(value).replace("|", "\\|").replace("\n", " ")
