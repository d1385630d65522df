"""Which extra indexes that pip is configured with answer: the first line has their URLs, and each
further line one that does not, and why. Nothing where all do. Runs inside a base or an image, whose
Python may be old.
"""

import configparser
import http.client
import os
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

SECONDS = 3


def configured():
    """The extra indexes, as pip finds them: the last file that names some, an `install` section
    before a `global` one, the environment before both.
    """
    if os.environ.get("PIP_EXTRA_INDEX_URL"):
        return os.environ["PIP_EXTRA_INDEX_URL"].split()
    named = os.environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    home = os.path.expanduser("~")
    files = [
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
        home + "/.pip/pip.conf",
        home + "/.config/pip/pip.conf",
        sys.prefix + "/pip.conf",
        named,
    ]
    found = {}
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in parser.sections():
            for name, value in parser.items(section):
                if name.replace("_", "-") == "extra-index-url":
                    found[section] = value.split()
    return found.get("install") or found.get("global") or []


def ask(url, answers):
    """Whatever a server says, it is there; a wrong certificate is pip's to complain of, and so is a
    folder.
    """
    if not url.startswith(("http://", "https://")):
        answers[url] = ""
        return
    where = urlsplit(url)
    without_login = where._replace(netloc=where.netloc.rpartition("@")[2]).geturl()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(without_login, method="HEAD"), timeout=SECONDS
        ):
            answers[url] = ""
    except (urllib.error.HTTPError, http.client.HTTPException):
        answers[url] = ""
    except urllib.error.URLError as error:
        answers[url] = "" if isinstance(error.reason, ssl.SSLError) else str(error.reason)
    except (OSError, ValueError) as error:
        answers[url] = str(error)


urls, answers = configured(), {}
threads = [threading.Thread(target=ask, args=(url, answers), daemon=True) for url in urls]
for thread in threads:
    thread.start()
until = time.monotonic() + SECONDS
for thread in threads:
    thread.join(max(0, until - time.monotonic()))
dead = {
    url: answers.get(url, f"no answer within {SECONDS} s") for url in urls if answers.get(url, "x")
}
if dead:
    print(" ".join(url for url in urls if url not in dead) or " ")
for url, reason in dead.items():
    where = urlsplit(url)
    print(
        "{}://{}{}: {}".format(
            where.scheme,
            where.netloc.rpartition("@")[2],
            where.path,
            " ".join(reason.split())[:200],
        )
    )
sys.stdout.flush()
os._exit(0)
