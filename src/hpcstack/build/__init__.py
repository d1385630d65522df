"""Build images: from a recipe and its lock to an `Artifact` in the store.

A request has the image's key; an engine runs its steps on the imported base. Bundles carry what a
build needs to machines without a network.
"""
