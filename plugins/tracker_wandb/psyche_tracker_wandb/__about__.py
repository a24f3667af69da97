"""Version of psyche-tracker-wandb."""

__version__ = "0.1.0"
