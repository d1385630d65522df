"""Launch one job step in an image.

Resources are named in Slurm's own words. Each word of the command line carries its reason.
"""
