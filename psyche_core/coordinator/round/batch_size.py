"""How many samples a round gets: it grows over the run, in integers, by the formula of the reference implementation."""

from __future__ import annotations


def batch_size(tokens: int, *, start: int, end: int, warmup_tokens: int) -> int:
    """Return the number of samples of a round: linear from `start` to `end` over `warmup_tokens` tokens, halves rounded up.

    tokens: number of tokens assigned before this round. start, end: in samples. The computation uses integers only: every
    implementation must assign the same samples, and programs on a chain have no floating-point numbers.
    """
    if tokens >= warmup_tokens:
        return end

    return start + (2 * (end - start) * tokens + warmup_tokens) // (2 * warmup_tokens)
