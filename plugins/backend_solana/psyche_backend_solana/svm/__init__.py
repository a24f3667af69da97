"""The coordinator program in an SVM in this process: for comparing it with `psyche_core.coordinator`, and for measuring it."""
