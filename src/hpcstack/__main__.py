"""`python -m hpcstack`."""

from hpcstack.cli import main

main()
