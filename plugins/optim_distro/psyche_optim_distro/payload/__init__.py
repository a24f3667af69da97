"""What is sent: which coefficients (`top_k`), their bytes (`codec`, `bit_packing`), and decoded payloads (`vote_cache`)."""
