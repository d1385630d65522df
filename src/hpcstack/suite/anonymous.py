"""Put other words in place of those by which somebody could be named, in a text of a run.

What may stay is listed, and nothing else stays: words of the suite itself (its sources and the
facts that it reads), numbers, versions, places of devices. So what no one has thought of is
replaced. A replacement has the form of what it stands for, as far as a check looks at that: the
class of an address, an identifier that is all zeros, the length of a number. The same word has the
same replacement throughout, since checks compare nodes with each other. Replacements are made with
a key that is thrown away: nobody can try out names.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core import data

if TYPE_CHECKING:
    from collections.abc import Mapping

WORD = re.compile(r"[^\s,;\"'`()\[\]{}=|<>*]+")
EDGES = "".join(":.!?#&%\\")  # at the ends of a word, they are the sentence's
# Forms that name nobody
HARMLESS = re.compile(
    r"""
    [+-]?\d{1,6} (\.\d+)? (e[+-]?\d+)?                             # a number, and a unit:
        (%|[kKMGT]?i?[bB](ps|/s|/sec)?|[kMGT]?Hz|[mun]?s|min|h|d|m?W|C|X|x|G|M|K|GT/s)?
    | [+-]?\d+\.\d+                                                   # a number with many digits
    | v?\d{1,5}(\.\d{1,5}){1,2} | [0-9A-F]{2}(\.[0-9A-F]{2}){4}       # versions: of a driver, a VBIOS
    | \d{4}-\d\d-\d\d (T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?  # a date
    | \d\d?:\d\d(:\d\d(\.\d+)?)?                                      # a time
    | (PCI:)?[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2})?(\.[0-9A-Fa-f])?  # a place on PCI
    | 0x0*[0-9A-Fa-f]{0,8}                                            # a mask, a status
    | x\d{1,2}                                                        # lanes
    | (GPU|NIC|CPU|NUMA|NV|rank|node|link|port|cuda:)\d{1,4}          # a device by its number
    | (mlx[45]|bnxt_re|irdma|efa|cxi|hfi1|hsn|ib|eth|nvidia|nvme|nvidia-nvswitch|card)_?\d{1,3}(np\d)?
    | rdmap\d{1,3}s\d{1,3}
    | [^A-Za-z0-9]+
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What stands behind these in a line is an identifier, whatever it looks like.
IDENTIFIES = re.compile(
    r"\b((?:[\w ]*(?:serial|uuid|guid|part number|board id|asset)[\w ]*?)\s*[:=]\s*)([^\\\n]+)",
    re.IGNORECASE,
)
IDENTIFYING = re.compile(r"\w*(serial|uuid|guid|uid)\w*", re.IGNORECASE)  # such a key of a document
UUID = re.compile(r"(?:(GPU|MIG)-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
ETHERNET = re.compile(
    r"[0-9a-f]{2}(?::[0-9a-f]{2}){5,19}", re.IGNORECASE
)  # or InfiniBand's, of 20 bytes
GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}", re.IGNORECASE)
HEX = re.compile(r"(0x)?[0-9a-f]{7,}", re.IGNORECASE)
GPU_NAME = re.compile(r"(GPU|MIG)-\S+")
# Words that nvidia-smi and the kernel's drivers use, and no check asks for
OF_TOOLS = frozenset(
    {
        *(
            "NVSMI",
            "Serial",
            "Attached",
            "Clocks",
            "Reasons",
            "Capping",
            "Affinity",
            "Legend",
            "Release",
        ),
        *("Nvlink", "Minion", "x86_64", "aarch64", "SDR", "DDR", "QDR", "FDR", "EDR", "HDR", "NDR"),
        *("XDR", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER", "Libfabric+GDR"),
    }
)
SYSTEM = frozenset({"proc", "sys", "dev", "usr", "etc", "lib", "lib64", "run"})
JOINTS = ("/", "@", ":", ".")  # of a word that is made of several, the outer ones first


@cache
def list_own_words() -> frozenset[str]:
    """Return the words of the suite: of its sources, of what judges and reports, and of the facts."""
    package = Path(__file__).resolve().parents[1]
    sources = [*data.read_smoke_files().values()]
    for folder in ("suite", "report"):
        sources += [path.read_text(encoding="utf-8") for path in (package / folder).glob("*.py")]
    facts = data.find_data_folder("facts")
    sources += [path.read_text(encoding="utf-8") for path in facts.glob("*.yaml")]
    words: set[str] = set()
    for text in sources:
        words.update(word.strip(EDGES) for word in WORD.findall(text))
        words.update(re.findall(r"[A-Za-z_]+", text))
    folders = {part for word in words if word.startswith("/") for part in word.split("/")}
    return frozenset(words | folders) | OF_TOOLS


class Replacements:
    """What stands in place of names; HOSTS, {name: other name}, are known before."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self.key = secrets.token_bytes(32)
        self.own_words = list_own_words()
        names: dict[str, str] = {}
        for host, other in hosts.items():
            names[host] = names[host.partition(".")[0]] = other
        longest_first = sorted(names, key=len, reverse=True)
        self.hosts = names
        self.any_host = re.compile(
            "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest_first) or r"(?!)"
        )

    def change(self, text: str) -> str:
        """Return TEXT with other words in place of all that are not known to name nobody."""
        text = self.any_host.sub(lambda found: self.hosts[found[0]], text)
        out, end = [], 0
        for found in IDENTIFIES.finditer(text):
            out.append(self._change_words(text[end : found.start(2)]))
            out.append(self._identify(found[2]))
            end = found.end()
        return "".join([*out, self._change_words(text[end:])])

    def change_all(self, value: Any) -> Any:
        """Return VALUE, a document, with each text in it changed, keys included."""
        if isinstance(value, str):
            return self.change(value)
        if isinstance(value, list):
            return [self.change_all(one) for one in value]
        if isinstance(value, dict):
            return {self.change(key): self._change_of_key(key, one) for key, one in value.items()}
        return value

    def _change_of_key(self, key: str, value: Any) -> Any:
        if not IDENTIFYING.fullmatch(key):
            return self.change_all(value)
        if isinstance(value, str):
            return self._identify(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return int(self._replace(f"{abs(value):07}"))
        return self.change_all(value)

    def _change_words(self, text: str) -> str:
        return WORD.sub(lambda found: self._change_word(found[0]), text)

    def _identify(self, value: str) -> str:
        """Return what stands in place of the identifier VALUE; a word that says there is none stays."""
        if value.strip("[] \t/") in ("N/A", "None", "Unknown", "NA"):
            return value
        return WORD.sub(lambda found: self._replace(found[0]), value)

    def _change_word(self, word: str) -> str:
        core = word.strip(EDGES)
        if not core:
            return word
        if word.startswith("::"):
            core = word.rstrip(EDGES)
        begin = word.index(core)
        return word[:begin] + self._change_core(core) + word[begin + len(core) :]

    def _change_core(self, word: str) -> str:
        if self._may_stay(word):
            return word
        if word.startswith("/"):
            return self._change_path(word)
        if any(form.fullmatch(word) for form in (UUID, ETHERNET, GUID, HEX, GPU_NAME)):
            return self._replace(word)
        if _parse_address(word) is not None:
            return self._replace(word)
        for joint in JOINTS:
            parts = word.split(joint)
            if len(parts) > 1:
                return joint.join(map(self._change_core, parts))
        return self._replace(word)

    def _may_stay(self, word: str) -> bool:
        if not word or word in self.own_words:
            return True
        if HARMLESS.fullmatch(word):
            return _parse_address(word) is None
        # an option, or a name that the suite has made, as of a measurement: of its own words
        is_made = word.startswith("-") or "_" in word
        parts = [part for part in re.split(r"[-_+]", word) if part]
        return is_made and all(part in self.own_words or part.isdigit() for part in parts)

    def _change_path(self, path: str) -> str:
        """Return what stands in place of PATH: the system's own folders are asked for by checks."""
        parts = path.split("/")
        if parts[1] not in SYSTEM:
            return "/hidden"
        return "/".join([*parts[:2], *map(self._change_core, filter(None, parts[2:]))])

    def _replace(self, word: str) -> str:
        """Return what stands in place of WORD, of the same form."""
        if not word.strip("0:.-x") and "0" in word:
            return word  # all zeros: there is none
        address = _parse_address(word)
        if address is not None:
            return self._replace_address(word, address)
        unit = GPU_NAME.fullmatch(word)
        if unit:
            return f"{unit[1]}-{self._replace(word[4:])}"
        is_hexadecimal = any(form.fullmatch(word) for form in (UUID, ETHERNET, GUID, HEX))
        if not is_hexadecimal:
            return f"x{self._draw(word, 8)}"
        digits = iter(self._draw(word, len(word)))
        is_number = word.isdigit()
        start = 2 if word[:2].lower() == "0x" else 0
        return word[:start] + "".join(
            _fit(next(digits), is_number=is_number) if one.isalnum() else one
            for one in word[start:]
        )

    def _replace_address(
        self, word: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address
    ) -> str:
        """Return an address of documentation in place of WORD; what is this machine's own stays."""
        if address.is_loopback or address.is_unspecified:
            return word
        number = int(self._draw(str(address), 16), 16)
        if isinstance(address, ipaddress.IPv4Address):
            return f"192.0.2.{1 + number % 254}"
        if address.ipv4_mapped is not None:
            other = ipaddress.IPv6Address(f"::ffff:192.0.2.{1 + number % 254}")
        else:
            network = "fe80::" if address.is_link_local else "2001:db8::"
            other = ipaddress.IPv6Address(int(ipaddress.IPv6Address(network)) + number)
        is_exploded = len(word) == 39  # as /sys writes a GID
        return other.exploded if is_exploded else str(other)

    def _draw(self, word: str, count: int) -> str:
        """Return COUNT hexadecimal digits that stand for WORD."""
        digits = ""
        while len(digits) < count:
            text = f"{len(digits)} {word.lower()}".encode()
            digits += hmac.new(self.key, text, hashlib.sha256).hexdigest()
        return digits[:count]


def _parse_address(word: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that WORD is, or None."""
    if word.count(".") != 3 and word.count(":") < 2:
        return None
    try:
        return ipaddress.ip_address(word)
    except ValueError:
        return None


def _fit(digit: str, *, is_number: bool) -> str:
    """Return the hexadecimal DIGIT, or a decimal one in its place."""
    return str(int(digit, 16) % 10) if is_number else digit
