"""What the programs report about a run.

`events` are the typed values, `sinks` deliver them, `event_files` are files of them, `repeated_problem` keeps a problem that
lasts from being reported again and again.
"""
