"""Reports a client's work: events for people, on which nothing in the protocol depends.

`step_figures` computes rates of trained steps, `path_reporter` reports how members are reached, `run_changes` reports when a run
goes back or is restored, and `lost_shares` whose shares of a step were not accepted. These are pure. `network_reporter` reports
what the transport sends, receives and downloads.
"""
