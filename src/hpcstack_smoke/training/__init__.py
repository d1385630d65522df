"""Checks of training over all ranks, each by two oracles (see task.py)."""
