"""Packages of a user's own on top of an image, without a new build.

In: a folder with pylock.toml, uv.lock, requirements.txt or environment.yml, or single packages.
Out: a lock beside them, and one squashfs file that launches mount. What the image has is never
installed again.
"""
