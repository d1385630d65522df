"""Checks of each rank's own GPU, by torch."""
