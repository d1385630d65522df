"""Launch: one job step in an image, with Slurm's own words for its resources, and a reason for each
word of it.
"""
