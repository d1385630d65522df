"""Runs the smoke suite (hpcstack_smoke) as job steps and judges what the ranks left. In: an image,
resources. Out: a `Report`, its gates and its history.
"""
