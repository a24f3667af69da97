"""Start mode: chooses the client that a run asks for, and keeps it running."""
