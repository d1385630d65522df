"""Declared releases: a folder says what shall be published, and `sync` makes it so.

In: the folder's files, recipes, locks, images, reports and ledgers. Out: a plan as data, each of its
steps carried out, and a result that says what was done, what waits, and what went wrong.
"""
