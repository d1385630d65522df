"""What a text on the command line means: an image or a stack, in every verb alike.

A text is `pytorch`, `pytorch-24.11`, `pytorch/24.11`, `pytorch/24.11-r2`, `pytorch-24.11@ENGINE`,
`pytorch-24.11@built`, the beginning of an image's key, or a file. `names.Names` answers for all
verbs; what it asks about the module tree is releases/published.py, the only place where such a text
is split. Patterns (`pytorch/24.*`) are spread into names by the verbs that take several.
"""
