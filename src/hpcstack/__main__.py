"""`python -m hpcstack`.

Tested in tests/unit/recipe/test_schema.py and tests/unit/cli/test_first_day.py.
"""

from hpcstack.cli import main

main()
