"""The formats of the programs: instructions as bytes, accounts as values. One module for each program."""
