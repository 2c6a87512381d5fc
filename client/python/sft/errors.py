"""What goes wrong, by the server's codes (docs/rest.md)."""

import typing


class Error(Exception):
    """A call that failed.

    code: as docs/rest.md lists them, "NOT_FOUND". message: for people. details: of a job that is refused each bad key,
    {"field": "hyperparameters.n_epochs", "description": "line 12: must be > 0"}.
    """

    code = "UNKNOWN"

    def __init__(self, message: str, details: typing.Sequence[typing.Mapping[str, str]] = (),
                 code: typing.Optional[str] = None):
        self.code = code or type(self).code
        self.message = message
        self.details = [dict(each) for each in details]
        lines = [message] + [f"  {each.get('field', '')}: {each.get('description', '')}" for each in self.details]
        super().__init__("\n".join(lines))


class InvalidArgument(Error):
    code = "INVALID_ARGUMENT"


class FailedPrecondition(Error):
    code = "FAILED_PRECONDITION"


class Unauthenticated(Error):
    code = "UNAUTHENTICATED"


class PermissionDenied(Error):
    code = "PERMISSION_DENIED"


class NotFound(Error):
    code = "NOT_FOUND"


class DeadlineExceeded(Error):
    code = "DEADLINE_EXCEEDED"


class AlreadyExists(Error):
    code = "ALREADY_EXISTS"


class Aborted(Error):
    code = "ABORTED"


class OutOfRange(Error):
    code = "OUT_OF_RANGE"


class ResourceExhausted(Error):
    code = "RESOURCE_EXHAUSTED"


class Unimplemented(Error):
    code = "UNIMPLEMENTED"


class Unavailable(Error):
    code = "UNAVAILABLE"


_CLASSES = {each.code: each for each in (
    InvalidArgument, FailedPrecondition, Unauthenticated, PermissionDenied, NotFound, DeadlineExceeded, AlreadyExists,
    Aborted, OutOfRange, ResourceExhausted, Unimplemented, Unavailable)}


def error_of(code: str, message: str, details: typing.Sequence[typing.Mapping[str, str]] = ()) -> Error:
    """The error of a code, of its class where there is one."""
    return _CLASSES.get(code, Error)(message, details, code)
