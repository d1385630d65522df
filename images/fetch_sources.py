"""Fetches pip's locked source distributions, each into a folder of its own, and looks at their
hashes.

    python3 fetch_sources.py LIST FOLDER

LIST is JSON: [{"name", "version", "file", "hashes": ["sha256:..."]}]. FOLDER/N becomes the folder
of the Nth: the file, and `requirement.txt`, which names it to pip by version and hash.

pip itself cannot fetch one without building it, and whatever pip may look at while it builds one
may end up in its build environment. So the files come from where pip is configured to look, by the
requests that pip brings, and pip is then shown nothing but one of these folders and the locked
build requirements. Runs inside a base, whose Python may be old.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

TIMEOUT = 60
PIECE = 1 << 20
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"  # PEP 691, PEP 503


def configured():
    """{setting: words} of pip's configuration: the environment comes before its files, `install`
    before `global`.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in (":env:", "install", "global"):
            found.setdefault(name.replace("_", "-"), {})[section] = ast.literal_eval(value).split()
    order = (":env:", "install", "global")
    return {name: next(said[one] for one in order if one in said) for name, said in found.items()}


def places_of(settings, name):
    """Where pip looks for the project NAME: pages and folders."""
    project = re.sub("[-_.]+", "-", name).lower()
    links = settings.get("find-links", [])
    if settings.get("no-index", ["0"])[:1] in (["1"], ["true"], ["True"], ["yes"], ["on"]):
        return links
    indexes = settings.get("index-url", ["https://pypi.org/simple"]) + settings.get(
        "extra-index-url", []
    )
    return [*links, *("{}/{}/".format(index.rstrip("/"), project) for index in indexes)]


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        target = dict(attrs).get("href")
        if tag == "a" and target:
            self.found.append(target)


def links_of(text, kind):
    """The addresses that a project's page names."""
    if "json" in kind:
        return [entry["url"] for entry in json.loads(text)["files"]]
    parser = Links()
    parser.feed(text)
    return parser.found


def named(url):
    return unquote(urlsplit(url).path).rpartition("/")[2]


def shown(url):
    """URL without a login."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def local(place):
    """The path that PLACE is, or nothing: it is an address."""
    if place.startswith("file:"):
        return url2pathname(urlsplit(place).path)
    return "" if "://" in place else place


class Fetcher:
    def __init__(self, settings):
        from pip._vendor import requests

        self.session = requests.Session()
        self.failures = (requests.RequestException, OSError, ValueError, KeyError)
        self.trusted = [host.partition(":")[0] for host in settings.get("trusted-host", [])]
        self.cert = (settings.get("cert") or [""])[0]

    def get(self, url, **options):
        verify = urlsplit(url).hostname not in self.trusted and (self.cert or True)
        answer = self.session.get(url, timeout=TIMEOUT, verify=verify, **options)
        answer.raise_for_status()
        return answer

    def find(self, place, file):
        """The path or address of FILE at PLACE; nothing where it is not there."""
        path = local(place)
        if path:
            if os.path.isfile(os.path.join(path, file)):
                return os.path.join(path, file)
            page = os.path.join(path, "index.html")
            if not os.path.isfile(page):
                return ""
            with open(page) as opened:
                targets = links_of(opened.read(), "text/html")
            found = next((target for target in targets if named(target) == file), "")
            return os.path.join(path, unquote(found.partition("#")[0])) if found else ""
        answer = self.get(place, headers={"Accept": ACCEPT})
        targets = links_of(answer.text, answer.headers.get("Content-Type", ""))
        found = next((target for target in targets if named(target) == file), "")
        return urljoin(answer.url, found) if found else ""

    def copy(self, source, target):
        if "://" not in source:
            shutil.copyfile(source, target)
            return
        with open(target, "wb") as out:
            for piece in self.get(source, stream=True).iter_content(PIECE):
                out.write(piece)

    def fetch(self, places, file, target):
        """FILE from the first of PLACES that has it, as TARGET. Whether one had it."""
        for place in places:
            try:
                source = self.find(place, file)
                if source:
                    self.copy(source, target)
                    return True
            except self.failures as error:
                print(f"{shown(place)}: {type(error).__name__}", flush=True)
        return False


def matches(path, hashes):
    """Whether the file PATH has one of HASHES."""
    for one in hashes:
        kind, _, wanted = one.partition(":")
        digest = hashlib.new(kind)
        with open(path, "rb") as opened:
            for piece in iter(lambda: opened.read(PIECE), b""):
                digest.update(piece)
        if digest.hexdigest() == wanted:
            return True
    return False


def main(listed, folder):
    with open(listed) as opened:
        wanted = json.load(opened)
    settings = configured()
    fetcher = Fetcher(settings)
    for number, one in enumerate(wanted):
        place = os.path.join(folder, str(number))
        os.makedirs(place)
        target = os.path.join(place, os.path.basename(one["file"]))
        if not fetcher.fetch(places_of(settings, one["name"]), one["file"], target):
            sys.exit(
                "No matching distribution found for {name}=={version}: nobody has {file}".format(
                    **one
                )
            )
        if not matches(target, one["hashes"]):
            sys.exit("THESE PACKAGES DO NOT MATCH THE HASHES of the lock: {file}".format(**one))
        hashes = "".join(f" --hash={found}" for found in one["hashes"])
        with open(os.path.join(place, "requirement.txt"), "w") as out:
            out.write(
                "{name}=={version}{hashes}\n".format(
                    hashes=hashes, name=one["name"], version=one["version"]
                )
            )


main(*sys.argv[1:])
