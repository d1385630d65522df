"""Make locks: of the base by asking a registry, of packages inside the base by its own pip and apt.

In: a recipe. Out: a `Lock`, which also lists what could not be resolved.
"""
