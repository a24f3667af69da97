"""What a client reports about its work: events for people, on which nothing in the protocol depends.

`step_figures` computes rates of trained steps, `path_reporter` how members are reached, `run_changes` where the run does not
simply go on (all pure), `network_reporter` what the transport sends, receives and downloads.
"""
