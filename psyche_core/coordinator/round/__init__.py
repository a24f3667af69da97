"""Rounds: who trains which samples and who witnesses them, what witnesses state, and when a round is over.

`rounds` starts, finishes and settles rounds; `committee` elects, `assignment` and `requeue` say who gets which samples, `schedule` how
many; `shuffle` has the permutations of both. `statements` takes the witnesses' statements in, `witness` evaluates them, `missed_duties`
and `equivocation` say what a member loses that states nothing, or two things.
"""
