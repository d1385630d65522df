"""Import any image once for a whole cluster, into a cache that only its own account writes.

In: an image, and the login of the user who wants it. Out: a squashfs that this user may read.
"""
