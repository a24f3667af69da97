"""What is known of a run from its events. Pure: no I/O, no clock.

`run_view` adds events up: curves in `buckets`, its lists in `records`, each member in `member_view`; `roster` finds the member
that an event is about. `documents` makes JSON of it, `client_status` that of one client, `replay_timing` when each event is
replayed.
"""
