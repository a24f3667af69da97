"""The models of simulated members: whole numbers, or a tiny torch model; and what they announce."""
