"""What Slurm says of itself, and jobs that are handed to it.

Readers of sinfo, srun --help, sacct and scontrol: they take text, and return partitions, limits,
options and states. A script becomes a job's number.
"""
