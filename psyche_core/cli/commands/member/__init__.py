"""Commands for members of a run.

`client` is `psyche client`, with `client_status` to read its status; `predownload` and `sidecar` are commands of these names.
"""
