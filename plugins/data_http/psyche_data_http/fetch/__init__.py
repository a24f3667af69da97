"""How sequences are fetched: range requests, retries and the disk cache."""
