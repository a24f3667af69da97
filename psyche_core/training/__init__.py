"""One client's training. The code is synchronous and uses torch.

`trainer` trains steps, `build` makes a trainer from a run's configuration, `local_run` trains a run in one process. `digest` and
`shared_tensors` compare replicas; `snapshot`, `changed_pieces` and `piece_file` send a model piece by piece; `checkpoints` keeps
it on disk.
"""
