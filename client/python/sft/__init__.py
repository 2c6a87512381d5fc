"""Submit, follow and fetch fine-tuning jobs of an sft-server, over its REST API (docs/python.md)."""

from ._submit import Plan
from .client import Client
from .errors import (Aborted, AlreadyExists, DeadlineExceeded, Error, FailedPrecondition, InvalidArgument, NotFound,
                     OutOfRange, PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable, Unimplemented)
from .job import Job, JobList

__all__ = [
    "Aborted", "AlreadyExists", "Client", "DeadlineExceeded", "Error", "FailedPrecondition", "InvalidArgument", "Job",
    "JobList", "NotFound", "OutOfRange", "PermissionDenied", "Plan", "ResourceExhausted", "Unauthenticated", "Unavailable",
    "Unimplemented", "export",
]
__version__ = "0.1.0"

from . import export  # noqa: E402
