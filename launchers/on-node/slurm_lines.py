"""Pure functions that turn a command typed in a container into the one to run on the node.

srun's steps and sbatch's scripts are made to run in the image that they were typed in. STEP says
how its containers are started, as runtimes/slurm_inside.py writes it down.

Needs Python 3.6, as nodes have it.
"""

import os
import re
import shlex
import string

ON_HOST = "HPCSTACK_ON_HOST"
# Options with which a caller chooses an image
OF_AN_IMAGE = ("--container", "--container-id", "--container-image", "--container-name")


class RefusedError(Exception):
    """What was typed cannot be done."""


# -- options, as getopt_long(3) has them


class Spelling:
    """The options of a program: `valued` are followed by a value, and `known` are all."""

    def __init__(self, valued, others, said):
        """Take Slurm's own options, and add those that plugins list in SAID, the output of --help."""
        self.valued = set(valued)
        self.known = self.valued.union(others)
        for name, sign in re.findall(r"^\s*(--[a-z][a-z0-9-]*)(=?)", said, re.MULTILINE):
            if name not in self.known and sign:
                self.valued.add(name)
            self.known.add(name)

    def resolve(self, name):
        """Return the option that NAME, which may be the beginning of one, means."""
        if name in self.known:
            return name
        fitting = sorted(one for one in self.known if one.startswith(name))
        if len({one in self.valued for one in fitting}) == 1:
            return fitting[0]
        return name


class Option:
    """One option: its `name`, `value` (None without one), and the `words` that it was typed in."""

    def __init__(self, name, value, words):
        self.name = name
        self.value = value
        self.words = words


def read_options(words, spelling):
    """Return the options that WORDS begin with, and the words after them.

    A `--` between the two is dropped.
    """
    options = []
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return options, words[place + 1 :]
        if not word.startswith("-") or word == "-":
            break
        name, sign, value = word.partition("=")
        if not word.startswith("--"):
            name, sign, value = _read_short(word, spelling)
        else:
            name = spelling.resolve(name)
        count = 1
        if not sign and name in spelling.valued:
            count = 2
            value = words[place + 1] if place + 1 < len(words) else ""
            sign = " "
        options.append(Option(name, value if sign else None, words[place : place + count]))
        place += count
    return options, words[place:]


def _read_short(word, spelling):
    """Return (name, sign, value) of the last of the short options in WORD, such as -lN2."""
    name = word[:2]
    for number, letter in enumerate(word[1:], 2):
        name = "-" + letter
        if name in spelling.valued:
            return name, "=" if word[number:] else "", word[number:]
        if not letter.isalpha():
            break
    return name, "", ""


def join_options(options):
    """Return the words of OPTIONS."""
    return [word for one in options for word in one.words]


def find_value(options, *names):
    """Return the value of the last of OPTIONS that is called one of NAMES; None without one."""
    found = [one.value for one in options if one.name in names]
    return found[-1] if found else None


def names_an_image(options):
    """Return whether OPTIONS choose an image themselves."""
    return any(one.name in OF_AN_IMAGE for one in options)


def is_on_host(environ):
    """Return whether the caller with these variables wants it outside the image."""
    return environ.get(ON_HOST, "") not in ("", "0", "no")


def find_folder(options, folder):
    """Return the folder that OPTIONS say, or else FOLDER."""
    said = find_value(options, "--chdir", "-D")
    return os.path.join(folder, said) if said else folder


# -- steps


def split_components(words):
    """Return the components of a heterogeneous step; WORDS have a `:` between them."""
    out = [[]]
    for word in words:
        if word == ":":
            out.append([])
        else:
            out[-1].append(word)
    return out


class ImageInserter:
    """Inserts, before each command of an srun, the words that start the container again."""

    def __init__(self, step, spelling, environ):
        self.step = step
        self.spelling = spelling
        self.environ = environ  # the caller's
        self.is_made = False  # whether a command will run in the image
        self.folder = None  # in which it is to run, where an option says so

    def insert_words(self, words):
        """Return the WORDS behind `srun`, changed.

        A component without a command, or that names an image itself, stays as it is.
        """
        out = []
        for number, component in enumerate(split_components(words)):
            if number:
                out.append(":")
            options, command = read_options(component, self.spelling)
            if not command or names_an_image(options):
                out += component
                continue
            self.is_made = True
            self.folder = find_value(options, "--chdir", "-D") or self.folder
            out += self._add_to(options)
            out += command
        return out

    def _add_to(self, options):
        for one in options:
            if one.name in ("--multi-prog", "--bcast"):
                raise RefusedError(
                    f"{one.name} hands srun a file, and the command is to run in an image\n"
                    f"  TIP: {ON_HOST}=yes srun ... runs it outside the image"
                )
        words = list(self.step["words"])
        if self.step["by_srun"]:
            options, words = _join_mounts(options, words)
        exported = find_value(options, "--export")
        if exported is None:
            exported = self.environ.get("SLURM_EXPORT_ENV")
        if exported is not None and exported.split(",")[0] != "ALL":
            options = [one for one in options if one.name != "--export"]
            options.append(Option("--export", "", [f"--export={self._widen(exported)}"]))
        # The step that it is typed in has the resources, and would not end for it.
        if self.step["is_in_step"] and not any(one.name == "--overlap" for one in options):
            options.append(Option("--overlap", None, ["--overlap"]))
        return [*join_options(options), *words]

    def _widen(self, exported):
        """Return the value of --export that also hands on what starting the container needs."""
        asked = [one for one in exported.split(",") if one not in ("NONE", "NIL", "")]
        carried = [PREFIX + one for one in asked if matches_any(one, CARRIED)]
        needed = ["PATH", "HOME", "HPCSTACK_SLURM_PWD", IN_STEP, *sorted(self.step["environment"])]
        return ",".join([*asked, *carried, *needed])


def _join_mounts(options, words):
    """Return OPTIONS and WORDS with the user's --container-mounts in ours: the last one counts."""
    own = [one.value for one in options if one.name == "--container-mounts" and one.value]
    rest = [one for one in options if one.name != "--container-mounts"]
    prefix = "--container-mounts="
    joined = [",".join([word, *own]) if word.startswith(prefix) else word for word in words]
    return rest, joined


# -- batch scripts


def split_job(words, spelling):
    """Return (the words of all components but the last, its options, the script and its arguments).

    As sbatch does, take a `:` for the end of a component only before the script.
    """
    before = []
    while True:
        options, rest = read_options(words, spelling)
        if rest[:1] != [":"]:
            return before, options, rest
        before += [*words[: len(words) - len(rest)], ":"]
        words = rest[1:]


SAVE_SLURM_VARIABLES = """\
# The script is to see the job's own variables, and not those of the step that srun makes for it.
for name in $(env -0 | tr '\\n\\0' ' \\n' | sed -n 's/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
    eval "export \\"HPCSTACK_INSIDE_$name=\\$$name\\""
    case $name in
    SLURM_CONF | SLURM_JOB_ID | SLURM_JOBID | SLURM_CLUSTERS | SLURM_JWT | SLURM_DEBUG_FLAGS) ;;
    *) unset "$name" ;;
    esac
done
export HPCSTACK_SLURM_BATCH=yes
"""
STEP_OF_THE_SCRIPT = (
    "srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mpi=none", "--mem=0",
    "--export=ALL", "--quiet", "--job-name=script",
)  # fmt: skip


def list_head(text):
    """Return the leading comments and blank lines of the script TEXT, without its first line."""
    out = []
    for line in text.split("\n")[1:]:
        if line.strip() and not line.lstrip().startswith("#"):
            break
        out.append(line)
    return out


def list_directives(text):
    """Return the words of the #SBATCH lines at the head of the script TEXT."""
    out = []
    for line in list_head(text):
        if not line.startswith("#SBATCH"):
            continue
        said = line[len("#SBATCH") :]
        try:
            out += shlex.split(said, comments=True)
        except ValueError:  # a quote without its end
            out += said.split()
    return out


def extract_wrap(options):
    """Return the script of --wrap in OPTIONS, None where there is none, and the others."""
    command = find_value(options, "--wrap")
    if command is None:
        return None, options
    others = [one for one in options if one.name != "--wrap"]
    return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n", others


def choose_end(text):
    """Return a line that ends TEXT in a shell script, and is none of its lines.

    dash 0.5.12 loses a byte where a line begins as the end does, and goes on with no ASCII.
    """
    lines = text.split("\n")
    odd = {line[0] for line in lines if line and any(ord(sign) > 127 for sign in line)}
    letters = [one for one in string.ascii_uppercase if one not in odd]
    end = "".join([*letters[:1], "_END_OF_SCRIPT"])
    while end in lines:
        end += "_"
    return end


def write_batch_script(text, step, folder):
    """Return a batch script that runs the script TEXT in the same image, in FOLDER.

    The comments at the head of TEXT, with its #SBATCH lines, are at its head too.
    """
    end = choose_end(text)
    lines = ["#!/bin/sh", *list_head(text)]
    lines.append("# This was submitted from inside an image. It runs the script below in there.")
    for name, value in sorted(step["environment"].items()):
        # --export=NONE would lose it
        lines.append(f'[ -n "${{{name}+set}}" ] || {name}={shlex.quote(value)}')
        lines.append(f"export {name}")
    lines.append(f"export HPCSTACK_SLURM_PWD={shlex.quote(folder)}")
    words = [shlex.quote(word) for word in (*step["words"], step["script"])]
    if step["by_srun"]:
        lines.append(SAVE_SLURM_VARIABLES.rstrip("\n"))
        words = [*STEP_OF_THE_SCRIPT, '--nodelist="$SLURMD_NODENAME"', *words]
    lines.append(f"exec {' '.join(words)} \"$@\" <<'{end}'")
    lines.append(text[:-1] if text.endswith("\n") else text)
    lines.append(end)
    return "\n".join(lines) + "\n"


# -- variables

PREFIX = "HPCSTACK_INSIDE_"
# Variables of the image that a program of the host's must not get. What it starts in the image gets
# them. A star stands for any end.
CARRIED = (
    "PATH", "LD_*", "PYTHON*", "PERL*", "BASH_ENV", "ENV", "GCONV_PATH", "GLIBC_*", "GETCONF_DIR",
    "LOCPATH", "MALLOC_*", "NLSPATH", "VIRTUAL_ENV*", "CONDA_*", "TMPDIR", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
)  # fmt: skip
# Variables that are one thing on the node, and another in a container
OF_THE_NODE = (
    "HOME", "SHELL", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "HOSTNAME", "_", "SLURM_CONF",
    "APPTAINER*", "SINGULARITY*", "ENROOT_*", "PYXIS_*", "CH_RUNNING", "container", "XDG_RUNTIME_DIR",
    "XDG_SESSION_*", "DBUS_*", "HPCSTACK_*", "BASH_FUNC_*",
)  # fmt: skip
# Set for the step of the launch itself; and what is meant for its container alone
OF_THE_LAUNCH = (
    "SLURM_EXIT_ERROR", PREFIX + "*", "HPCSTACK_SLURM_BATCH", "HPCSTACK_SLURM_PWD",
    "HPCSTACK_SLURM_SOCKET",
)  # fmt: skip
# Set where the containers are those of a step that was started from inside, and holds resources
IN_STEP = "HPCSTACK_SLURM_STEP"
# What a new job keeps of Slurm's variables, and which of a rank's it does not get
KEPT_IN_NEW_JOB = (
    "SLURM_CLUSTERS", "SLURM_CONF", "SLURM_DEBUG_FLAGS", "SLURM_JWT", "SLURM_TIME_FORMAT",
    "SLURM_UMASK",
)  # fmt: skip
OF_A_RANK = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "PMI_*", "PMI2_*", "PMIX_*", "OMPI_COMM_*", "TORCHELASTIC_*",
    "GPU_DEVICE_ORDINAL",
)  # fmt: skip


def matches_any(name, beginnings):
    """Return whether NAME is one of BEGINNINGS, or begins with one before its star."""
    return any(
        name.startswith(one[:-1]) if one.endswith("*") else name == one for one in beginnings
    )


def make_environment(own, theirs, image):
    """Return the variables for a program of the host's, and those for what it starts in the image.

    OWN are the node's and THEIRS the caller's; IMAGE names the image's own. The second ones have
    other names, which in-image/slurm.sh takes away again. They are the ones that a program of the
    host's must not get, and those of the image that the caller may have changed.
    """
    kept = (*OF_THE_NODE, *CARRIED)
    out = {
        name: value
        for name, value in own.items()
        if (matches_any(name, kept) or name in image) and not matches_any(name, OF_THE_LAUNCH)
    }
    carried = {}
    for name, value in theirs.items():
        if matches_any(name, OF_THE_NODE) or matches_any(name, OF_THE_LAUNCH):
            continue
        if name.endswith("_VISIBLE_DEVICES"):
            out[name] = value  # Slurm sets it for each step
        elif matches_any(name, CARRIED) or name in image:
            carried[PREFIX + name] = value
        else:
            out[name] = value
    return out, carried


def leave_job(environ):
    """Return ENVIRON without the variables of the current job and rank, for a new job."""
    return {
        name: value
        for name, value in environ.items()
        if name != IN_STEP
        and not matches_any(name, OF_A_RANK)
        and not name.endswith("_VISIBLE_DEVICES")
        and (not name.startswith("SLURM_") or name in KEPT_IN_NEW_JOB)
    }
