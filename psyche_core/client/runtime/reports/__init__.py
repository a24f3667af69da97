"""What a client reports about its work: events for people, on which nothing in the protocol depends.

`step_figures` computes rates of trained steps, `path_reporter` how members are reached (both pure), `network_reporter` what the
transport sends, receives and downloads.
"""
