"""Who takes part: `members` has joining, leaving and health checks, `exits` what both change in the state.

`missed_duties` and `equivocation` say what a member loses that states nothing, or two different things.
"""
