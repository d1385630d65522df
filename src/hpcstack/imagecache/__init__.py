"""One import a cluster, for every image: a cache that only its own account writes, and who may read
what in it.
"""
