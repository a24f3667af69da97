"""The commands `psyche run-manager …` and `psyche solana …`, one module per topic; `context` has what all of them need."""
