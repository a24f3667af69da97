"""DisTrO as a Psyche optimizer plugin. Importing this package imports no torch; see `hooks` for what it registers."""
