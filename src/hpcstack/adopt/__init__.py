"""Adopt what a site has: an image that hpcstack did not build, and its Lua modulefile.

They become a recipe, a lock of what is in the image, and an image in the store. Takes a squashfs or
a registry's image; returns an `Adoption`.
"""
