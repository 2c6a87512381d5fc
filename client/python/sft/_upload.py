"""Sends a data file, from where the server has it."""

import pathlib
import time
import typing

from ._http import given
from .errors import Aborted, DeadlineExceeded, Error, OutOfRange, Unavailable

if typing.TYPE_CHECKING:
    from .client import Client

# In a row, without a byte more than before.
_ATTEMPTS = 5


def send(client: "Client", path: pathlib.Path, sha256: str, size: int, project: str) -> None:
    """What was sent before a connection broke is not sent again. NotFound: a server that takes no uploads over HTTP."""
    tries, before = 0, -1
    while True:
        stat = client.call("DataService/StatBlob", given({"sha256": sha256, "purpose": "DATASET", "project": project}))
        if stat["complete"]:
            return
        received = int(stat["received"])
        tries = 1 if received > before else tries + 1
        before = max(before, received)
        error: Error
        try:
            with open(path, "rb") as file:
                file.seek(received)
                client.upload({"sha256": sha256, "size": size, "offset": received, "purpose": "DATASET",
                               "display_name": path.name, "project": project}, file, size - received)
            return
        except (Unavailable, DeadlineExceeded, Aborted, OutOfRange) as told:
            # Also where the server has not yet seen that the connection before this one is gone.
            error = told
        if tries == _ATTEMPTS:
            raise error
        time.sleep(0.5 * 2 ** (tries - 1))
