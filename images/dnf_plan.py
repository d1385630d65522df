"""What dnf would do for the packages that a recipe names, as JSON; nothing is installed.

Run in the base, by the Python that has dnf's own modules (images/lib.sh, hpcstack_dnf_python):
dnf_plan.py FILE KEPT CACHE. FILE names a package a line, as NAME or NAME=VERSION-RELEASE. KEPT has
lines NAME=VERSION-RELEASE: of these packages no other version is taken.

{"install": [{name, version, arch, file, hash}], "remove": [{name, version}], "lost": [NAME, ...],
"gone": [NAME=VERSION-RELEASE, ...], "problem": TEXT}. `lost` are names that no repository has, `gone`
what is to be kept and is in none any more, `problem` why dnf finds no way. What is replaced is in
`install` and in `remove`.
"""

import json
import os
import sys

import dnf
import hawkey


def make_base(cache):
    """Return dnf's base with its repositories, as its command line makes it."""
    base = dnf.Base()
    base.conf.read()
    base.conf.substitutions.update_from_etc(base.conf.installroot)
    release = dnf.rpm.detect_releasever(base.conf.installroot)
    if release and not base.conf.substitutions.get("releasever"):
        base.conf.substitutions["releasever"] = release
    base.conf.cachedir = cache
    base.conf.install_weak_deps = False
    if os.environ.get("SSL_CERT_FILE"):
        base.conf.sslcacert = os.environ["SSL_CERT_FILE"]
    base.read_all_repos()
    base.fill_sack()
    return base


def describe(package):
    """Return PACKAGE as the lock has it. Its hash is the one that the repository lists."""
    kind, digest = package.chksum
    return {
        "name": package.name,
        "version": package.evr,
        "arch": package.arch,
        "file": os.path.basename(package.location),
        "hash": f"{hawkey.chksum_name(kind)}:{digest.hex()}",
    }


def keep_versions(base, lines):
    """Let dnf see no other version of the packages in LINES. Return those that it does not see at all."""
    gone = []
    for line in lines:
        name, _, version = line.partition("=")
        offered = base.sack.query().available().filter(name=name)
        if offered.filter(evr=version):
            base.sack.add_excludes(offered.filter(evr__neq=version))
        else:
            gone.append(line)
    return gone


def main():
    wanted, kept, cache = sys.argv[1:]
    base = make_base(cache)
    with open(kept) as file:
        gone = keep_versions(base, file.read().split())
    lost = []
    with open(wanted) as file:
        for line in file.read().split():
            try:
                base.install("-".join(line.split("=", 1)))
            except dnf.exceptions.MarkingError:
                lost.append(line)
    found = {"install": [], "remove": [], "lost": lost, "gone": gone, "problem": ""}
    is_found = False
    if not lost and not gone:
        try:
            is_found = base.resolve()
        except dnf.exceptions.DepsolveError as error:
            found["problem"] = str(error)
    if is_found:
        found["install"] = [describe(one) for one in base.transaction.install_set]
        found["remove"] = [
            {"name": one.name, "version": one.evr} for one in base.transaction.remove_set
        ]
    print(json.dumps(found, indent=1))


main()
