"""Locks: what the names in a recipe meant when they were looked up.

In: a lock file, a recipe. Out: a `Lock`, whether it is stale, what differs between two.
"""
