"""Keeps a client's figures in TensorBoard's event files; registers the tracker `tensorboard`."""

from psyche_tracker_tensorboard.__about__ import __version__

__all__ = ["__version__"]
