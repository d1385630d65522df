"""From rendered files to an image: a request with its key, the base, an engine, the store; bundles
for machines without a network. In: a recipe and its lock. Out: an `Artifact`.
"""
