"""What the programs read and keep: instructions as bytes, accounts as values. One module for each program."""
