"""What everything stands on: errors with exit codes, programs and their output, files that others
may have made, leases, YAML with places, quoting. In: paths, text, argv. Out: values, or one
HpcstackError.
"""
