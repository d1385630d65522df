"""What was built, below one folder that many processes share: images by key, caches, workspaces,
signatures, SBOMs.

In: a built file. Out: an `Artifact`. Everything appears by one rename, or not at all.
"""
