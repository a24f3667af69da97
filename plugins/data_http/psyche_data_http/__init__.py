"""Training data from web servers, as the data location `Http`."""

from psyche_data_http.__about__ import __version__

__all__ = ["__version__"]
