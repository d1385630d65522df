"""What Slurm says of itself: readers of sinfo, srun --help and scontrol. In: their text. Out:
partitions, limits, options; of a job: its number.
"""
