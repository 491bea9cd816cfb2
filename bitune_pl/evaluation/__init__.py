"""Scores of a model on tasks: log-likelihood over choices, exact match of generated answers."""
