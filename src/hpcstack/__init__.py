"""hpcstack: from a stack's YAML spec to a lock, an image, a module, a launcher and a proof."""

__version__ = "0.1.0"

# Variables that hpcstack sets for itself while it runs: no program that it starts inherits them.
OWN_VARIABLES: set[str] = set()
