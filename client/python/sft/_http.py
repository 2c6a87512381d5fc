"""Calls and event streams of the REST API, by the standard library alone."""

import http.client
import json
import select
import socket
import ssl
import threading
import time
import typing
import urllib.parse

from ._address import Address, is_loopback
from .errors import DeadlineExceeded, Error, Unavailable, error_of

# Of one answer, as sftctl waits for it. A stream says something every 15 s.
_CALL_S = 60.0
_SILENCE_S = 60.0
# Of the answer to an upload, before which all of it is read again.
_CHECK_S = 1800.0
_ATTEMPTS = 4
_LONGEST_PAUSE_S = 30.0
# The server closes a connection after 60 s without a request.
_IDLE_S = 45.0
# How long a stream tries to come back to a server that does not answer.
PATIENCE_S = 600.0

# Calls that may be sent twice: they change nothing, or what they do is done once however often it is asked for.
_REPEATABLE = ("Get", "List", "Read", "Resolve", "Stat", "Watch", "Explain", "WhoAmI", "Download", "Cancel", "Hold",
               "Release")

_BROKEN = (http.client.HTTPException, OSError)

Event = typing.Tuple[str, typing.Optional[str], typing.Any]


class Cut(Exception):
    """A stream broke off before its end."""


class _Answer(typing.NamedTuple):
    status: int
    headers: typing.Any
    body: bytes


def _error_of(answer: _Answer, web: str) -> Error:
    try:
        told = json.loads(answer.body)
        return error_of(told["code"], told["message"], told.get("details", ()))
    except (ValueError, KeyError, TypeError):
        text = answer.body.decode(errors="replace").strip()[:500]
        code = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED",
                413: "OUT_OF_RANGE", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "UNAVAILABLE"}
        return error_of(code.get(answer.status, "UNKNOWN"), f"{web} answered {answer.status}: {text or 'nothing'}")


def given(request: typing.Mapping[str, typing.Any]) -> typing.Dict[str, typing.Any]:
    """Without fields of their default: a server of an earlier release refuses those that it does not know."""
    return {name: value for name, value in request.items() if value or isinstance(value, float)}


def _may_repeat(method: str, request: typing.Mapping[str, typing.Any]) -> bool:
    return bool(request.get("request_id")) or method.rpartition("/")[2].startswith(_REPEATABLE)


class Transport:
    """Calls one server. Each thread has a connection of its own, which is kept; streams have theirs."""

    def __init__(self, address: Address):
        self._address = address
        self._parts = urllib.parse.urlsplit(address.web)
        self._context = address.context()
        self._kept = threading.local()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._context is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._context)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _headers(self) -> typing.Dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._address.token:
            headers["Authorization"] = "Bearer " + self._address.token
        return headers

    def _kept_connection(self) -> http.client.HTTPConnection:
        """The thread's own, or a new one where the server has closed it meanwhile."""
        kept: typing.Optional[http.client.HTTPConnection] = getattr(self._kept, "connection", None)
        if kept is not None:
            fresh = kept.sock is not None and time.monotonic() - self._kept.used < _IDLE_S
            if fresh and not select.select([kept.sock], [], [], 0)[0]:
                return kept
            kept.close()
        made = self._connect(_CALL_S)
        self._kept.connection = made
        return made

    def close(self) -> None:
        kept = getattr(self._kept, "connection", None)
        if kept is not None:
            kept.close()

    def _ask(self, method: str, body: bytes) -> _Answer:
        connection = self._kept_connection()
        try:
            connection.request("POST", "/api/v1/" + method, body, self._headers())
            response = connection.getresponse()
            answer = _Answer(response.status, response.headers, response.read())
        except BaseException:
            connection.close()
            raise
        self._kept.used = time.monotonic()
        return answer

    def unreachable(self, error: Exception) -> Error:
        web = self._address.web
        if isinstance(error, ssl.SSLCertVerificationError):
            return Unavailable(f"the certificate of {web} is not trusted here ({error.verify_message}): log in with "
                               "`sftctl login`, or give the authority's certificate (ca, SFT_CA)")
        if isinstance(error, ssl.SSLError):
            return Unavailable(f"{web} does not speak TLS as asked ({error}): set web or SFT_WEB to the address that "
                               "`sftctl web` prints")
        here = is_loopback(self._parts.hostname or "")
        return Unavailable(
            f"cannot reach the HTTP of sft-server at {web}: {error or type(error).__name__}; it is by default the port "
            f"after the server's ({self._address.server}). Set web or SFT_WEB where `sftctl web` prints another"
            + (", or start the server: `sft-server --dev`" if here else ""))

    def call(self, method: str, request: typing.Mapping[str, typing.Any]) -> typing.Dict[str, typing.Any]:
        """One call. What broke or was refused for now is tried again, if the call may be sent twice."""
        body = json.dumps(request).encode()
        repeatable = _may_repeat(method, request)
        error: Error
        for attempt in range(_ATTEMPTS):
            pause = 0.5 * 2 ** attempt
            try:
                answer = self._ask(method, body)
            except _BROKEN as broken:
                error = self.unreachable(broken)
                if isinstance(broken, (ssl.SSLError, socket.gaierror)):
                    break
                # Nothing was sent where nobody listened.
                if not repeatable and not isinstance(broken, ConnectionRefusedError):
                    error = Unavailable(error.message + "; what was asked for may have been done all the same")
                    break
            else:
                if answer.status == 200:
                    result: typing.Dict[str, typing.Any] = json.loads(answer.body)
                    return result
                error = _error_of(answer, self._address.web)
                again = answer.status in (408, 429, 502, 503, 504) and answer.headers.get("x-should-retry") != "false"
                if not again or not repeatable:
                    break
                pause = max(pause, _seconds(answer.headers.get("Retry-After")))
            if attempt + 1 < _ATTEMPTS:
                time.sleep(min(pause, _LONGEST_PAUSE_S))
        raise error

    def upload(self, query: typing.Mapping[str, typing.Any], file: typing.BinaryIO, size: int) -> typing.Dict[str, typing.Any]:
        """Sends the rest of a file, once, on a connection of its own. Unavailable where that broke."""
        headers = {**self._headers(), "Content-Type": "application/octet-stream", "Content-Length": str(size)}
        connection = self._connect(_CALL_S)
        path = "/api/v1/DataService/UploadBlob?" + urllib.parse.urlencode(given(query))
        try:
            try:
                connection.request("POST", path, file, headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before all of it was sent: the answer says why
            if connection.sock is not None:
                connection.sock.settimeout(_CHECK_S)
            response = connection.getresponse()
            answer = _Answer(response.status, response.headers, response.read())
        except _BROKEN as broken:
            raise self.unreachable(broken) from broken
        finally:
            connection.close()
        if answer.status != 200:
            raise _error_of(answer, self._address.web)
        result: typing.Dict[str, typing.Any] = json.loads(answer.body)
        return result

    def events(self, path: str, body: typing.Optional[bytes] = None, cursor: typing.Optional[str] = None,
               deadline: typing.Optional[float] = None) -> typing.Iterator[Event]:
        """One event stream as (name, id, data), up to its `end`. Cut: it broke; what came is whole. Error: the server
        refused it or says that it cannot go on. TimeoutError: time.monotonic() has passed the deadline."""
        headers = {**self._headers(), "Accept": "text/event-stream"}
        if cursor:
            headers["Last-Event-ID"] = cursor
        left = _SILENCE_S if deadline is None else max(0.1, min(deadline - time.monotonic(), _SILENCE_S))
        connection = self._connect(left)
        try:
            connection.request("GET" if body is None else "POST", path, body, headers)
            sock = connection.sock
            response = connection.getresponse()
            if response.status != 200:
                answer = _Answer(response.status, response.headers, response.read())
                error = _error_of(answer, self._address.web)
                if answer.headers.get("x-should-retry") == "false" or answer.status not in (408, 429, 502, 503, 504):
                    raise error
                raise Cut(error)
            yield from self._read_events(sock, response, deadline)
        except _BROKEN as broken:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("the time is over") from broken
            if isinstance(broken, ssl.SSLError) and not isinstance(broken, ssl.SSLEOFError):
                raise self.unreachable(broken) from broken
            raise Cut(self.unreachable(broken)) from broken
        finally:
            connection.close()

    @staticmethod
    def _read_events(sock: socket.socket, response: http.client.HTTPResponse,
                     deadline: typing.Optional[float]) -> typing.Iterator[Event]:
        event: typing.Dict[str, str] = {}
        while True:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("the time is over")
                sock.settimeout(min(left, _SILENCE_S))
            line = response.readline()
            if not line.endswith(b"\n"):
                raise Cut(Unavailable("the stream broke off"))
            if line != b"\n":
                field, _, value = line[:-1].decode().partition(": ")
                event[field] = value
                continue
            if "data" not in event:
                event = {}
                continue
            name, data = event.get("event", "message"), json.loads(event["data"])
            if name == "end":
                return
            if name == "error":
                error = error_of(data["code"], data["message"], data.get("details", ()))
                raise Cut(error) if isinstance(error, (Unavailable, DeadlineExceeded)) else error
            yield name, event.get("id"), data
            event = {}

    def follow(self, path: str, deadline: typing.Optional[float] = None) -> typing.Iterator[typing.Tuple[str, typing.Any]]:
        """A feed to its end, over cut connections and restarts of the server, without a gap and without a double."""
        cursor: typing.Optional[str] = None
        heard, pause = time.monotonic(), 0.5
        while True:
            try:
                for name, event_id, data in self.events(path, cursor=cursor, deadline=deadline):
                    cursor = event_id or cursor
                    yield name, data
                    heard, pause = time.monotonic(), 0.5
                return
            except Cut as cut:
                now = time.monotonic()
                if deadline is not None and now + pause >= deadline:
                    raise TimeoutError("the time is over") from cut
                if now - heard > PATIENCE_S:
                    raise (cut.args[0] if isinstance(cut.args[0], Error) else Unavailable(str(cut))) from cut
                time.sleep(pause)
                pause = min(2 * pause, 5.0)

    def read(self, method: str, request: typing.Mapping[str, typing.Any]) -> typing.Iterator[typing.Any]:
        """The messages of a method that sends several. Error UNAVAILABLE where the stream broke."""
        try:
            for _, _, data in self.events("/api/v1/" + method, json.dumps(request).encode()):
                yield data
        except Cut as cut:
            raise cut.args[0] from cut


def _seconds(text: typing.Optional[str]) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0

