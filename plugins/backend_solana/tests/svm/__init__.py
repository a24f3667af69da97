"""The on-chain programs in a Solana virtual machine (LiteSVM) in this process, for tests and benchmarks.

`program_chain`: all programs, commanded by transactions. `coordinator_svm`: the coordinator program, commanded with the values of
`psyche_core.coordinator`; `refusals` has its refusals by name. `runs` and `random_commands` draw runs and commands; `largest` has
the largest run there can be; `differential` compares the program with `psyche_core.coordinator.apply` (`make soak`).
"""
