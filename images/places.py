"""Places for mounts in a base's tree: places.py ROOT [--make] PLACE... -- COMMAND...

COMMAND, unless the way to a PLACE in ROOT leads over a link: what mounts something there would follow it, out of ROOT.
--make: an empty folder for each PLACE that is not there. Each part of a way is opened from the one before, so that
nothing of the base is followed. Run by the machine's Python, without libraries.
"""

import os
import stat
import sys

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def look(root, place, *, make):
    """The way to PLACE in ROOT, part by part."""
    here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    at = ""
    for part in [name for name in place.split("/") if name]:
        at += f"/{part}"
        try:
            kind = os.stat(part, dir_fd=here, follow_symlinks=False).st_mode
        except FileNotFoundError:
            if not make:
                return
            os.mkdir(part, 0o755, dir_fd=here)
            kind = stat.S_IFDIR
        if stat.S_ISLNK(kind):
            sys.exit(
                f"the image has a link at {at}, where a build has a folder or file of its own: "
                "this engine cannot build on it"
            )
        if not stat.S_ISDIR(kind):
            return
        inner = os.open(part, FOLDER, dir_fd=here)
        os.close(here)
        here = inner


def main():
    root, *rest = sys.argv[1:]
    end = rest.index("--")
    places, command = rest[:end], rest[end + 1 :]
    make = places[:1] == ["--make"]
    for place in places[1:] if make else places:
        look(root, place, make=make)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
