"""Reads training data from web servers; registers the data locations `Http` and `WeightedHttp`."""

from psyche_data_http.__about__ import __version__

__all__ = ["__version__"]
