"""A member's model on disk: checkpoints, and the journal of rounds applied since.

`checkpoint` saves and deletes checkpoints, `manifest` says what is in one, `public_state` and `private_state` keep the
optimizer's. `initial_model` chooses what a client starts from, `sources` finds or downloads it. `journal` (with `journal_file`
and `journal_records`) writes rounds, `journal_replay` applies them again. `journal_lock` and `folder_member` are about
shared folders. The stores for a run's models are in `psyche_core.storage.model_stores`.
"""
