"""Training data: token files, Parquet rows, mixtures, the seeded order of sequences, tokenizing and inspection."""
