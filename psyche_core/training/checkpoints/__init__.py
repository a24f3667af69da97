"""A member's model on disk: checkpoints, and the journal of rounds applied since.

`checkpoint` saves and deletes checkpoints, `manifest` describes their content, `public_state` and `private_state` keep the
optimizer's. `initial_model` chooses what a client starts from, `sources` finds or downloads it. `journal` writes rounds and
applies them again, `journal_records` is their format. `folder_member` is about shared folders. The stores for a run's models are
in `psyche_core.storage.model_stores`.
"""
