"""All options of the programs: one module for each program, with a class that has names, defaults, rules and explanations.

A new option of a program is a field of its class: of members in `client`, of the server in `server`, of the local testnet in
`testnet`, of pages in `web` and `replay`, of training in one process in `train_local`. The command line takes all names, help
texts and defaults from these classes, and the heading under which help shows an option, which `groups` has. `shared` has the
options that several programs have; `common` has types and texts of those that differ from program to program; `loading` reads
arguments and environment. What a *run* is configured with is in `config.schema`, a plugin's own options are in the plugin.
"""
