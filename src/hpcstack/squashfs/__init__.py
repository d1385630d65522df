"""SquashFS 4.0 files: read without mounting, and spliced. In: a base image and layers of changes.
Out: one image that keeps the base's compressed bytes.
"""
