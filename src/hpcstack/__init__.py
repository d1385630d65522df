"""hpcstack: from a stack's YAML spec to a lock, an image, a module, a launcher and a proof.

Tested in tests/unit/test_version.py.
"""

try:
    from hpcstack._version import __version__
except ImportError:  # a checkout that was never installed, by `pip install -e .` neither
    __version__ = "0.1.0+unknown"

__all__ = ["OWN_VARIABLES", "__version__"]

# Variables that hpcstack sets for itself while it runs: no program that it starts inherits them.
OWN_VARIABLES: set[str] = set()
