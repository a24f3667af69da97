"""What goes wrong in a simulated run: the script's faults, and what its liars do."""
