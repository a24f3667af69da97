"""Reads training data from web servers; registers the data locations `Http` and `WeightedHttp`.

`provider` and `weighted` are the two locations, `settings` and `locations` their tables. `sources` lists the files, behind the
interface of `file_source`; `fetch` gets sequences from them.
"""

from psyche_data_http.__about__ import __version__

__all__ = ["__version__"]
