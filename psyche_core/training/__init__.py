"""One client's training: its step, its digests and its checkpoints. The code is synchronous and uses torch."""
