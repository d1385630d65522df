"""Images as registries, daemons and archives hold them: clients, manifests, layers, how layers
merge into one tree. In: a reference and credentials. Out: one squashfs, with its configuration.
Each input is hostile until it is read.
"""
