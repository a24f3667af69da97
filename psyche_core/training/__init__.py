"""One client's training. The code is synchronous and uses torch.

`trainer` makes the steps, `build` makes a trainer from a run's configuration, `local_run` plays a run in one process. `digest`
and `shared_tensors` are for comparing replicas, `snapshot`, `changed_pieces` and `piece_file` for sending a model piece by
piece; `checkpoints` keeps it on disk.
"""
