"""DisTrO as a Psyche optimizer plugin. Importing this package imports no torch; `hooks` registers it."""
