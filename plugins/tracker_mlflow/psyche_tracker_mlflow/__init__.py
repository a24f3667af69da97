"""Keeps a client's figures on an MLflow server; registers the tracker `mlflow`.

`settings` are its options, `api` is what it says to the server, `tracker` decides what is sent and when.
"""

from psyche_tracker_mlflow.__about__ import __version__

__all__ = ["__version__"]
