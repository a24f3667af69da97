"""The server of a run: what `psyche server run` does after its options are read.

`run_files` loads and checks a run's files, and `disk_checks` checks what they name on this machine. `token_preparation` makes
token files. `serving` hosts the run, `change_reporter` reports its changes, and `owner_requests` carries out the owner's requests
while it runs. The rules are in `coordinator`, sockets in a backend's plugin.
"""
