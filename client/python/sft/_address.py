"""Where the server is and who calls: found as sftctl finds it (docs/cli.md), and its HTTP address beside it."""

import dataclasses
import json
import os
import pathlib
import re
import socket
import ssl
import stat
import typing
import urllib.parse

from .errors import FailedPrecondition, InvalidArgument

DEFAULT_SERVER = "127.0.0.1:7070"


@dataclasses.dataclass(frozen=True)
class Address:
    """server: HOST:PORT as sftctl takes it. web: "https://HOST:PORT" of its HTTP. authority: the PEM of the fleet's
    authority, or empty. ca: the file that it was read from, where it was one; for sftctl."""

    server: str
    web: str
    token: str
    authority: str
    ca: str

    def context(self) -> typing.Optional[ssl.SSLContext]:
        """None without TLS. The fleet's authority is trusted, and so are this machine's, of which the certificate of a
        site or a proxy may be."""
        if not self.web.startswith("https://"):
            return None
        context = ssl.create_default_context()
        if self.authority:
            context.load_verify_locations(cadata=self.authority)
        return context


def _config_folder() -> pathlib.Path:
    home = os.environ.get("XDG_CONFIG_HOME")
    return (pathlib.Path(home) if home else pathlib.Path.home() / ".config") / "sft"


def _of_config_file() -> str:
    path = _config_folder() / "config.toml"
    if not path.exists():
        return ""
    server = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if re.fullmatch(r"\s*(#.*)?", line):
            continue
        found = re.fullmatch(r"""\s*server\s*=\s*(?:"([^"\\]*)"|'([^']*)')\s*(#.*)?""", line)
        if not found:
            raise InvalidArgument(f'{path}:{number}: the one key is server = "host:port"')
        server = found[1] or found[2] or ""
    return server


def _logins() -> typing.Dict[str, typing.Any]:
    path = _config_folder() / "credentials.json"
    if not path.exists():
        return {}
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise FailedPrecondition(f"{path} may be read by others, and it holds tokens: `chmod 600 {path}`")
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        kept = None
    if not isinstance(kept, dict):
        raise InvalidArgument(f"{path} cannot be read: remove it and log in again (`sftctl login`)")
    return kept


def split_host(server: str) -> typing.Tuple[str, int]:
    """HOST:PORT or [IPV6]:PORT."""
    try:
        parts = urllib.parse.urlsplit("//" + server)
        if parts.hostname and parts.port and not parts.path:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise InvalidArgument(f'"{server}" is no HOST:PORT of a server; the address of its HTTP goes into web= or SFT_WEB')


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127\.\d+\.\d+\.\d+", host) is not None


def _web_beside(server: str, has_authority: bool) -> str:
    """The port after the server's, which is the default of `sft-server --http`."""
    host, port = split_host(server)
    scheme = "https" if has_authority or not is_loopback(host) else "http"
    return f"{scheme}://{'[' + host + ']' if ':' in host else host}:{port + 1}"


def _serving(servers: str) -> str:
    """Of several addresses, with commas, the first that accepts a connection: a standby does once it serves. The first
    where none does."""
    addresses = servers.split(",")
    for address in addresses:
        split_host(address)
    if len(addresses) > 1:
        for address in addresses:
            try:
                socket.create_connection(split_host(address), timeout=2).close()
                return address
            except OSError:
                continue
    return addresses[0]


def find(server: typing.Optional[str], token: typing.Optional[str], ca: typing.Optional[str],
         web: typing.Optional[str]) -> Address:
    """What is given wins over the environment, and that over what `sftctl login` kept."""
    logins = _logins()
    server = (server or os.environ.get("SFT_SERVER") or _of_config_file() or logins.get("server") or DEFAULT_SERVER)
    server = _serving(server)
    login = (logins.get("servers") or {}).get(server) or {}
    ca = ca or os.environ.get("SFT_CA") or ""
    try:
        authority = pathlib.Path(ca).read_text(encoding="ascii") if ca else login.get("authority", "")
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the authority's certificate cannot be read (ca, SFT_CA): {error}") from error
    token = token or os.environ.get("SFT_TOKEN") or login.get("token", "")
    web = (web or os.environ.get("SFT_WEB") or _web_beside(server, bool(authority))).rstrip("/")
    parts = urllib.parse.urlsplit(web)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise InvalidArgument(f'"{web}" (web, SFT_WEB) is no address as https://sft.example.org:7443')
    if token and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise FailedPrecondition(f"a token is not sent to {web} without TLS: give an https:// address")
    return Address(server, web, token, authority, ca)
