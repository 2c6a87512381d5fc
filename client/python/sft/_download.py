"""Fetches what a job delivered, file by file, each held against its hash."""

import base64
import hashlib
import os
import pathlib
import shutil
import typing

from .errors import AlreadyExists, Error, FailedPrecondition, Unavailable

if typing.TYPE_CHECKING:
    from .client import Client

_ATTEMPTS = 5


def _hash_of(path: pathlib.Path) -> "hashlib._Hash":
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            sha.update(block)
    return sha


def _is(path: pathlib.Path, blob: typing.Mapping[str, typing.Any]) -> bool:
    return path.is_file() and path.stat().st_size == int(blob["size"]) and _hash_of(path).hexdigest() == blob["sha256"]


def _below(folder: pathlib.Path, name: str) -> pathlib.Path:
    parts = pathlib.PurePosixPath(name).parts
    if not parts or name.startswith("/") or any(part == ".." or "\\" in part or ":" in part for part in parts):
        raise Error(f'the server names a file "{name}", which is none below a folder')
    return folder.joinpath(*parts)


def _fetch(client: "Client", artifact: str, name: str, blob: typing.Mapping[str, typing.Any], path: pathlib.Path) -> None:
    """Goes on behind the bytes that are there."""
    size = int(blob["size"])
    path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(_ATTEMPTS):
        have = path.stat().st_size if path.exists() else 0
        if have > size:
            path.unlink()
            have = 0
        try:
            with open(path, "ab") as out:
                chunks = client.stream("DataService/DownloadArtifactFile",
                                       {"name": artifact, "path": name, "offset": have}) if have < size else ()
                for chunk in chunks:
                    out.write(base64.b64decode(chunk["data"]))
                out.flush()
                os.fsync(out.fileno())
        except Unavailable:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        if _is(path, blob):
            return
        path.unlink()
    raise Error(f"{name} came damaged {_ATTEMPTS} times: its content is not what the server says it is", code="DATA_LOSS")


def download(client: "Client", job: str, path: typing.Optional[str], kind: str = "") -> str:
    artifact = client.call("DataService/GetArtifact", {"name": job})
    if kind and artifact["kind"] != kind:
        raise FailedPrecondition(f"{job} delivered no {kind} but: {artifact['kind']}; job.download() fetches it")
    folder = pathlib.Path(path or f"{job}-{artifact['kind']}")
    if folder.exists():
        if all(_is(_below(folder, each["path"]), each["blob"]) for each in artifact["files"]):
            return str(folder)
        raise AlreadyExists(f"{folder} is there and is not what {job} delivered: remove it or name another folder")
    partial = folder.with_name(f".{folder.name}.{artifact['name'].rpartition('/')[2]}.partial")
    for each in artifact["files"]:
        _fetch(client, artifact["name"], each["path"], each["blob"], _below(partial, each["path"]))
    for left in set(partial.rglob("*")) - {_below(partial, each["path"]) for each in artifact["files"]}:
        if not left.is_dir():
            left.unlink()
    try:
        os.rename(partial, folder)
    except OSError:
        if folder.exists():  # another download was faster
            shutil.rmtree(partial)
            return download(client, job, str(folder), kind)
        raise
    return str(folder)
