"""Rounds: who trains which samples and who witnesses them, what witnesses state, and when a round is over.

`rounds` starts, finishes and settles rounds. `committee` elects, `assignment` and `requeue` say who gets which samples, and
`schedule` how many; `shuffle` has the permutations. `statements` takes the witnesses' statements in and `witness` evaluates them.
`missed_duties` and `equivocation` say what a member loses that states nothing, or two different things.
"""
