"""What a member does when shares are challenged (protocol section 7): it shows parts, recomputes, commits, and checks. Pure.

`duties` decides it from the coordinator's state and from what other members have announced.
"""
