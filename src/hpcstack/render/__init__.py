"""Text from a stack, its lock and a site: {path: text}, pure and byte-stable.

Nothing here writes or runs.
"""
