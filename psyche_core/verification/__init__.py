"""Verification of shares: what is committed, drawn, compared and decided when a member's training is checked. Pure.

`merkle` commits to the chunks of a member's delta and proves single ones, `opening` is what is shown of them, `drawing` says
from a seed who is challenged, by whom, and which chunks are opened, `overlap` is the free score of payloads alone, `replay`
compares opened chunks with a recomputed gradient, `words` are what witnesses say about them, `challenge` is one challenge from
its draw to its verdict, `standing` what verdicts mean for a member, and `chances` how soon a cheat is ejected. No module knows an
optimizer: chunks are rows of numbers, payloads are positions and signs. `opening`, `overlap` and `replay` use numpy; the others
compute with integers and bytes, so that replicas agree. `epoch` holds the open challenges and the standings of an epoch.
docs/explanation/verification.md explains all of it, docs/explanation/protocol.md says in section 7 how rounds use it.
"""
