"""Slurm: `client.Client` starts its programs, and the readers make data of what they say.

`query` reads partitions, options and PMI types, `state` the states of jobs; `options` knows Slurm's
own options. What goes out: partitions, limits, states, the number of a job that was submitted.
"""
