"""Locks: what a stack's names meant when they were looked up."""
