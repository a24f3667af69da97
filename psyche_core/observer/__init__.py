"""What is known of a run: `run_view` turns events into figures, `documents` makes JSON of them. Pure: no I/O, no clock."""
