"""The commands `psyche run-manager …` and `psyche solana …`, one module per topic; `context` has the shared parts."""
