"""Checks of one node, by the standard library alone."""
