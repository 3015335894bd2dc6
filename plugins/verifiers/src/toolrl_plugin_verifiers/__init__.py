"""The plugin `verifiers`: environments of the library of that name."""
