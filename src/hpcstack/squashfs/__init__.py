"""Read SquashFS 4.0 files without mounting them, and splice them.

In: a base image and layers of changes. Out: one image that keeps the base's compressed bytes.
"""
