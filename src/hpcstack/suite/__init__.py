"""Run the smoke suite (hpcstack_smoke) as job steps, and judge what the ranks left.

In: an image and resources. Out: a `Report`, judged by gates and by its history.
"""
