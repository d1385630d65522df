"""Recipes: what a stack is made of. In: YAML files, each over what it extends. Out: a validated
`Stack`, each value with the file and line it came from.
"""
