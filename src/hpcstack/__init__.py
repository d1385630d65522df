"""hpcstack: from a stack's YAML spec to a lock, an image, a module, a launcher and a proof."""

__version__ = "0.1.0"
