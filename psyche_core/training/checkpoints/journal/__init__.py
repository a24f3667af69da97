"""The journal of the rounds applied since the last checkpoint.

`journal` is what clients use; `file` is its file (format: `checkpoints.journal_records`), `contents` what a reader gets, `lock`
its names and its lock, `replacement` a new one in its place, `quarantined_journals` those that were renamed, `replay` the
rounds applied again.
"""
