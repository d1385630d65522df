"""Takes over what a site has: an image that hpcstack did not build, and the modulefile that offers
it, become a recipe, a lock of what is in it, and an image in the store. In: a squashfs or a
registry's image. Out: an `Adoption`.
"""
