"""Returns where the model of a finished run is: the folder of a member's last checkpoint, and the location that the run names."""

from __future__ import annotations

from pathlib import Path

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.text_safety import printable


def place_of(checkpoint: Choice) -> str | None:
    """Return where a run's stored checkpoint is, as one word for people; None if it has no location."""
    settings = checkpoint.settings or {}
    if repository := settings.get("repo_id"):
        revision = settings.get("revision")
        return printable(f"{repository}@{revision}" if revision else repository)
    if bucket := settings.get("bucket"):
        whole = bucket if "://" in bucket else f"gs://{bucket}"
        return printable("/".join(filter(None, (whole, settings.get("prefix")))))
    return None


def end_sentence(state: CoordinatorState, *, reason: str, checkpoint: Path | None = None) -> str:
    """Return why a program ends with a finished run, and where the run's model is, as far as known.

    checkpoint: our own of the last step, None if we have none.
    """
    known = [reason]
    if checkpoint is not None:
        known.append(f"the final model is in {checkpoint}")
    place = place_of(state.model.LLM.checkpoint) if state.stored.step else None
    if place is not None:
        which = "the final model" if state.stored.step == state.progress.step - 1 else f"the model after step {state.stored.step}"
        known.append(f"{which} is stored at {place}")
    return "; ".join(known)
