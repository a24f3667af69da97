"""One client's training: training steps, digests and checkpoints. The code is synchronous and uses torch."""
