"""Makes locks: the base by a registry, packages inside the base by its own pip and apt. In: a
recipe. Out: a `Lock`, and what it leaves open.
"""
