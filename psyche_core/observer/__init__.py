"""Builds a view of a run from its events. Pure: no I/O, no clock.

`run_view` combines events: curves in `buckets`, lists in `records`, each member in `member_view`. `roster` finds the member that
an event is about. `documents` makes JSON of a run, and `client_status` of one client. `replay_timing` computes when each event is
replayed.
"""
