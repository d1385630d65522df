"""Find what is wrong with a machine, a node or a log, why it matters, and what to type.

In: what programs and logs say. Out: findings.
"""
