"""Images as registries, daemons and archives hold them: clients, manifests, layers, and how layers
merge into one tree.

In: a reference and credentials. Out: one squashfs, with its configuration. All input is treated as
hostile until it has been checked.
"""
