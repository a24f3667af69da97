"""Shows a run to people: log lines, the live panel, reports and plots. Its only input is events.

`run_metrics` and `client_metrics` compute figures and compare clients; `lost_shares` counts rounds that lost shares. `console`,
`live` and `summary` show them, and `display` chooses one of these. `run_report` and `plot` write files; `client_status_text`
shows one client's status.
"""
