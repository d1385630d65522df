"""The ground that every other package stands on.

Holds errors with exit codes, the runner of programs, files that other users may have made, leases,
YAML whose values keep their places, and quoting. Takes paths, text and argv; returns values, or
raises one HpcstackError.
"""
