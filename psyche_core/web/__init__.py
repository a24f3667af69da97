"""The web page of runs: `app` answers requests, `sources` keep the runs' views up to date, `hosting` serves it. Read-only."""
