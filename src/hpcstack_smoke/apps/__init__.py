"""Checks of frameworks that meet in their own way, a process a rank."""
