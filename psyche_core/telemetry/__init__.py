"""What the programs report about a run: `events` are the typed values, and `sinks` write them to screens, files and trackers."""
