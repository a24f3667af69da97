"""Keeps a client's figures at Weights & Biases; registers the tracker `wandb`."""

from psyche_tracker_wandb.__about__ import __version__

__all__ = ["__version__"]
