"""What the programs report about a run: `events` are the typed values, `sinks` take them to screens, files and trackers."""
