"""The web page of runs, read-only: `app` answers requests, `pages` are its HTML, `sources` keep the runs' views up to date.

What a page says is in `assets`: `common.js` has the names of phases, and `index.js`, `run.js` and `member.js` a page each.
`hosting` serves it, and `visitors` counts connections. What it knows of a run is in `observer`.
"""
