"""Render what a site lends to a build: mirrors, proxy, CA bundle.

The build finds it at /mnt while it runs. The image keeps no trace of it.

Tested in tests/unit/render/test_render.py and tests/hostile/test_gifts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcstack.render.template import fill_template

if TYPE_CHECKING:
    from hpcstack.site.load import Site
    from hpcstack.site.model import BuildSite

CA_FILE = "hpcstack-ca.pem"
CA_VARIABLES = (
    "PIP_CERT",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
)


def make_lent_files(site: Site, build: BuildSite | None = None) -> dict[str, str]:
    """Return {name: text} of the folder that is bound at /mnt; the build adds the CA bundle to it.

    BUILD is what the site lends, where it does not lend all that it has (hpcstack.site.logins).
    """
    build = build or site.build
    text = fill_template(
        "images",
        "site.sh.j2",
        variables=list_build_variables(build),
        apt=build.apt.mirrors,
        indexes=build.pip.extra_index_urls,
        ca=f"/mnt/{CA_FILE}" if build.ca_bundle else "",
    )
    return {"hpcstack-site.sh": text}


def list_build_variables(build: BuildSite) -> dict[str, str]:
    """Return the variables that are set for the build's steps, and not in the image."""
    out: dict[str, str] = {}

    proxies = {
        "http_proxy": build.proxy.http,
        "https_proxy": build.proxy.https,
        "no_proxy": build.proxy.no,
    }
    for name, value in proxies.items():
        if value:  # some programs read one spelling only
            out[name] = value
            out[name.upper()] = value

    if build.ca_bundle:
        out |= dict.fromkeys(CA_VARIABLES, f"/mnt/{CA_FILE}")
    if build.pip.index_url:
        out["PIP_INDEX_URL"] = build.pip.index_url
    if build.pip.extra_index_urls:
        out["PIP_EXTRA_INDEX_URL"] = " ".join(build.pip.extra_index_urls)
    if build.pip.trusted_hosts:
        out["PIP_TRUSTED_HOST"] = " ".join(build.pip.trusted_hosts)

    # git takes settings from numbered variables, without a file.
    for number, (upstream, mirror) in enumerate(build.git.mirrors.items()):
        out["GIT_CONFIG_COUNT"] = str(number + 1)
        out[f"GIT_CONFIG_KEY_{number}"] = f"url.{mirror}.insteadOf"
        out[f"GIT_CONFIG_VALUE_{number}"] = upstream

    if build.conda.channel_alias:
        out["HPCSTACK_CONDA_ALIAS"] = build.conda.channel_alias
    return out
