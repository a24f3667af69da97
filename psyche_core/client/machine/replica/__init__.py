"""Whether our replica equals the others': digests, getting the model from other members, and storing it for the run.

- `digests` compares replicas; `resync` (with `resync_state`) gets the model from other members when ours cannot be used;
  `missing_model` and `contested_model` are for when nobody offers it, or members offer different ones.
- `checkpoint_upload` stores the model for the run.
"""
