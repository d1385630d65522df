"""One cluster, as its site.yaml says: partitions, node types, registries, folders, policy. In: that
file, or what the cluster says when asked. Out: a frozen `Site`, each value with its origin.
"""
