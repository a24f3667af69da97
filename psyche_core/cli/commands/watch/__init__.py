"""Commands that show runs and take no part: `psyche replay` and `psyche web`."""
