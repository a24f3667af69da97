"""The training room: one client's step, its digests and checkpoints. Short synchronous files; torch lives here."""
