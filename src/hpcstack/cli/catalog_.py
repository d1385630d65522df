"""`hpcstack catalog`."""
