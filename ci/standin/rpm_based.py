"""Turn a Debian root folder into one of rpm and dnf, as those of Rocky Linux are.

Real: rpm, dnf, their databases, a repository with hashes. Not real: the packages, which hold one file
each and are made on the spot, and that Debian's programs stand below them without a record.
"""

from __future__ import annotations

import shlex

# Debian's rpm keeps its database in a home; repositories need no network.
SETTINGS = """\
set -e
mkdir -p /etc/rpm /etc/yum.repos.d /etc/dnf/vars /opt/archive /var/lib/rpm
echo '%_dbpath /var/lib/rpm' >/etc/rpm/macros
echo 9 >/etc/dnf/vars/releasever
printf '[archive]\\nname=archive\\nbaseurl=file:///opt/archive\\ngpgcheck=0\\n' >/etc/yum.repos.d/archive.repo
"""
SPEC = """\
Name: {name}
Version: {version}
Release: 1.el9
Summary: stand-in
License: none
AutoReqProv: no
BuildArch: noarch
{requires}
%description
stand-in
%install
mkdir -p %{{buildroot}}$(dirname {file})
echo '{name} {version}' >%{{buildroot}}{file}
%files
{file}
"""
# Nothing of dpkg's stays, nor what only made the packages.
LEAVE_DPKG = """\
createrepo_c -q /opt/archive
dnf -y -q install {installed}
dnf -q clean all
rm -rf /root/made /root/rpmbuild /var/lib/dpkg /var/lib/apt /etc/apt /usr/bin/dpkg* /usr/bin/apt* /var/cache/apt
"""


def make_rpm_script(about: dict[str, list[object]]) -> str:
    """The script that is run in the root: ABOUT has `archive`, rows of name, version, what it
    requires and its file, and `installed`, what of it is in the image.
    """
    script = SETTINGS
    for number, row in enumerate(about["archive"]):
        assert isinstance(row, list)
        name, version, requires, file = row
        requires = f"Requires: {requires}" if requires else ""
        spec = SPEC.format(name=name, version=version, requires=requires, file=file)
        path = f"/root/made/{number}.spec"
        script += f"mkdir -p /root/made && printf %s {shlex.quote(spec)} >{path}\n"
        script += f"rpmbuild -bb --quiet --define '_topdir /root/rpmbuild' --define '_rpmdir /opt/archive' {path}\n"
    return script + LEAVE_DPKG.format(installed=shlex.join(str(one) for one in about["installed"]))
