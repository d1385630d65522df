"""What a text on the command line means: an image, a stack or a published version, in every verb alike.

A text is `pytorch`, `pytorch-24.11`, `pytorch/24.11`, `pytorch/24.11-r2`, `pytorch-24.11@ENGINE`, the
beginning of an image's key, or a file. `names.Names` answers for all verbs; no other module splits
such a text. Patterns (`pytorch/24.*`) are spread into names by the verbs that take several. Read
names.py first; published.py is what it asks about the module tree.
"""
