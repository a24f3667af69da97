"""The server of a run: what `psyche server run` does after its options are read.

`run_files` loads and checks a run's files, `disk_checks` what they name on this machine; `token_preparation` makes token files;
`serving` hosts the run, `change_reporter` says what happens in it, `owner_requests` does what the owner asks for meanwhile. Rules
are in `coordinator`, sockets in a backend's plugin.
"""
