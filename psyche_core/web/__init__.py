"""The web page of runs, read-only: `app` answers requests, `pages` are its HTML, `sources` keep the runs' views up to date.

`hosting` serves it. What it knows of a run is in `observer`.
"""
