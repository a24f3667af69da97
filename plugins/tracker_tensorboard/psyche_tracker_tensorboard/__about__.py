"""Version of psyche-tracker-tensorboard."""

__version__ = "0.1.0"
