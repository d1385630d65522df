"""What people have already becomes a recipe: a Dockerfile, a definition, a list of packages.

A file of theirs comes in. What a recipe can say of it goes out as the recipe's text; each line that
it cannot say is named, with what to write instead.
"""
