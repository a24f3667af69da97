"""The read-only web page of runs: `app` answers requests, `pages` has their HTML, `sources` keeps the views of runs up to date.

The content of the pages is in `assets`: `common.js` has the names of phases; `index.js`, `run.js` and `member.js` make one page
each. `hosting` serves the pages, and `visitors` limits connections. The data comes from `observer`.
"""
