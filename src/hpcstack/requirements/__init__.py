"""What a folder asks for, as its own files say: pylock.toml, uv.lock, requirements.txt and others.

In: a folder. Out: its requirements, the versions and hashes that its lock pins, and a digest of all
of it. Nothing is resolved here.
"""
