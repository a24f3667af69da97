"""The commands `psyche run-manager …` and `psyche solana …`, one module per concern; `context` has what all of them need."""
