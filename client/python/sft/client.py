"""A server, as a user sees it."""

import os
import typing
import urllib.parse

from . import _address
from ._http import Transport, given
from ._submit import Json, Plan, Source, Submission, overrides_of, values_of_config
from .errors import InvalidArgument
from .job import Job, JobList


class Client:
    """Calls one server.

    server: "HOST:PORT" as for sftctl, else SFT_SERVER, ~/.config/sft/config.toml, the last `sftctl login`,
    127.0.0.1:7070. web: the address of its HTTP, "https://HOST:PORT", else SFT_WEB, else the port after the server's.
    token and ca (a file): else SFT_TOKEN and SFT_CA, else what `sftctl login` kept for that server.
    project: of new jobs, else SFT_PROJECT. May be used by several threads.
    """

    def __init__(self, server: typing.Optional[str] = None, token: typing.Optional[str] = None,
                 ca: typing.Optional[str] = None, web: typing.Optional[str] = None, project: str = ""):
        self.address = _address.find(server, token, ca, web)
        self.project = project or os.environ.get("SFT_PROJECT", "")
        self._transport = Transport(self.address)

    def call(self, method: str, request: typing.Optional[typing.Mapping[str, typing.Any]] = None) -> Json:
        """Any unary call of docs/rest.md: call("ClusterService/ListNodes"). Raises sft.Error. What the server says may be
        tried again is, where the call changes nothing or has a `request_id`."""
        return self._transport.call(method, request or {})

    def upload(self, query: typing.Mapping[str, typing.Any], file: typing.BinaryIO, size: int) -> Json:
        """DataService/UploadBlob of docs/rest.md: `query` names the blob, `file` has its next `size` bytes."""
        return self._transport.upload(query, file, size)

    def stream(self, method: str,
               request: typing.Optional[typing.Mapping[str, typing.Any]] = None) -> typing.Iterator[Json]:
        """The messages of a call that sends several."""
        return self._transport.read(method, request or {})

    def feed(self, deadline: typing.Optional[float] = None, **query: typing.Any) -> typing.Iterator[typing.Tuple[str, Json]]:
        """The feed of docs/rest.md to its end, as (event, data), over cut connections and restarts of the server:
        feed(jobs=1), feed(job="job-abc", metrics=0, log="0:0"). deadline: a time.monotonic(), then TimeoutError."""
        return self._transport.follow("/api/v1/feed?" + urllib.parse.urlencode(query, doseq=True), deadline)

    def pages(self, method: str, request: Json, member: str, limit: typing.Optional[int] = None) -> typing.Iterator[Json]:
        """The items of a list call, page by page."""
        left, token = limit, ""
        while left is None or left > 0:
            size = {} if left is None else {"page_size": min(left, 1000)}
            answer = self.call(method, given({**request, **size, "page_token": token}))
            for item in answer[member][:left]:
                yield item
            left = None if left is None else left - len(answer[member])
            token = answer["next_page_token"]
            if not token:
                return

    @typing.overload
    def submit(self, job: typing.Optional[Source] = None, name: str = "",
               set: typing.Optional[typing.Mapping[str, typing.Any]] = None, dry_run: typing.Literal[False] = False,
               config: typing.Any = None, project: str = "", request_id: str = "", **values: typing.Any) -> Job: ...

    @typing.overload
    def submit(self, job: typing.Optional[Source] = None, name: str = "",
               set: typing.Optional[typing.Mapping[str, typing.Any]] = None, *, dry_run: typing.Literal[True],
               config: typing.Any = None, project: str = "", request_id: str = "", **values: typing.Any) -> Plan: ...

    def submit(self, job: typing.Optional[Source] = None, name: str = "",
               set: typing.Optional[typing.Mapping[str, typing.Any]] = None, dry_run: bool = False, config: typing.Any = None,
               project: str = "", request_id: str = "", **values: typing.Any) -> typing.Union[Job, Plan]:
        """Submits a job: a dict of tables and keys, the path of a job file (TOML, YAML, JSON), or its text.

        name: its label. set: values of keys under any of their spellings, over the file's. config: in place of `job` or
        over it, an SFTConfig or TrainingArguments, of which the values count that are not the class's defaults; other
        keys beside it as words (model=, data=). Paths in a dict, a text and `set` count from the working directory.
        With dry_run nothing is submitted and a Plan comes back, else a Job. The same request_id makes one job.
        InvalidArgument has all problems in `details`.
        """
        if job is None and config is None:
            raise InvalidArgument("say what to submit: a dict, the path of a job file, its text, or config=")
        if isinstance(job, typing.Mapping) and values:
            raise InvalidArgument(f"{', '.join(values)}: put it into the dict, or into set=")
        overrides = overrides_of({**(values_of_config(config) if config is not None else {}), **values,
                                  **({"job.name": name} if name else {}), **(set or {})})
        submission = Submission(self, {} if job is None else job, overrides, project or self.project, request_id)
        return submission.plan(explain=True) if dry_run else Job(self, submission.run())

    def job(self, name: str) -> Job:
        """A job by its id. NotFound."""
        return Job(self, self.call("JobService/GetJob", {"name": name}))

    def jobs(self, state: typing.Union[str, typing.Sequence[str]] = (), owner: str = "", project: str = "", group: str = "",
             sweep: str = "", query: str = "", order_by: str = "", limit: typing.Optional[int] = None,
             filter: str = "") -> JobList:
        """Jobs, newest first or as `order_by` says ("submitted", "started", "ended", "name", with " desc"): all that
        match, page by page, or the first `limit`. query: a part of the id or name. filter: words, as in
        `sftctl list --filter` ("state=running,pending llama")."""
        request = {"states": [state] if isinstance(state, str) and state else list(state), "owner": owner, "group": group,
                   "project": project, "sweep": sweep, "query": query, "order_by": order_by,
                   "filter": filter}
        return JobList(Job(self, each) for each in self.pages("JobService/ListJobs", request, "jobs", limit))

    def close(self) -> None:
        """Closes the connection that this thread has kept; a later call opens another."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: typing.Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sft.Client {self.address.web}>"
