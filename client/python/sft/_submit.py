"""Jobs on their way to the server: the text, the values beside it and the files that it names."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import typing
import uuid

from . import _show, _upload
from ._http import given
from .errors import Error, FailedPrecondition, InvalidArgument, NotFound, error_of

if typing.TYPE_CHECKING:
    from .client import Client

Json = typing.Dict[str, typing.Any]
Source = typing.Union[str, "os.PathLike[str]", typing.Mapping[str, typing.Any]]

_MOST_BYTES = 1 << 20
# Of sftctl's environment: variables that set keys of a job are not among them, as they are not read here either.
_VARIABLES = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR", "LANG", "LC_ALL", "SYSTEMROOT")
_CODES = {2: "INVALID_ARGUMENT", 3: "NOT_FOUND", 4: "UNAVAILABLE", 5: "FAILED_PRECONDITION"}


@dataclasses.dataclass(frozen=True)
class _JobFile:
    text: str
    name: str
    folder: pathlib.Path
    # Empty: it is on no disk.
    path: str


def _read(source: Source) -> _JobFile:
    if isinstance(source, typing.Mapping):
        return _JobFile(json.dumps(source, indent=1), "job.json", pathlib.Path("."), "")
    if isinstance(source, str) and "\n" in source:
        name = "job.json" if source.lstrip().startswith("{") else "job"
        return _JobFile(source, name, pathlib.Path("."), "")
    path = pathlib.Path(source)
    if not path.is_file():
        raise InvalidArgument(f"{path} is no file; a job is a dict, the path of a job file, or its text")
    if path.stat().st_size > _MOST_BYTES:
        raise InvalidArgument(f"{path} has more than 1 MiB, the most of a job file")
    try:
        return _JobFile(path.read_text(encoding="utf-8"), path.name, path.parent, str(path))
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is not UTF-8, as a job file must be") from error


def _text_of(value: typing.Any) -> str:
    """As `--set` has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(_text_of(each) for each in value)
    return str(value)


def overrides_of(values: typing.Mapping[str, typing.Any]) -> typing.List[Json]:
    return [{"key": key, "value": _text_of(value), "kind": "SET", "origin": "set"} for key, value in values.items()]


def values_of_config(config: typing.Any) -> Json:
    """What a TrainingArguments, SFTConfig, ... says beyond its class's defaults."""
    values = config.to_dict()
    try:
        usual = type(config)().to_dict()
    except TypeError as error:
        raise InvalidArgument(f"{type(config).__name__} cannot be made without arguments, so its defaults are unknown: "
                              "give its values in set=") from error
    return {key: value for key, value in values.items()
            if value is not None and value != usual.get(key) and key not in ("output_dir", "logging_dir")}


class Plan:
    """What a job would be: the answer to submit(..., dry_run=True). `raw` is the message ResolveJobResponse."""

    def __init__(self, raw: Json):
        self.raw = raw

    @property
    def valid(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> typing.List[Json]:
        """`key, line, message` of each reason why it would be refused."""
        return list(self.raw["problems"])

    @property
    def warnings(self) -> typing.List[Json]:
        return list(self.raw["warnings"])

    @property
    def values(self) -> typing.Dict[str, str]:
        """Each key with its value."""
        return {each["key"]: each["value"] for each in self.raw["resolved"]}

    @property
    def plan(self) -> Json:
        """Allocation, batch, parameters, memory: the message JobPlan."""
        return dict(self.raw.get("plan") or {})

    def __repr__(self) -> str:
        lines = [f"{each['key']}: {each['message']}" for each in self.problems]
        if self.valid:
            lines = [f"{name}: {self.plan[name]}" for name in ("variant", "placement", "batch", "execution", "note")
                     if self.plan.get(name)]
        return "\n".join(map(_show.one_line, [f"<sft.Plan {'valid' if self.valid else 'refused'}>"] + lines))


class Submission:
    """One submit: asks, looks for the files, sends."""

    def __init__(self, client: "Client", source: Source, overrides: typing.List[Json], project: str, request_id: str):
        self._client = client
        self._file = _read(source)
        self._project, self._overrides = project, overrides
        self._request_id = request_id or str(uuid.uuid4())
        self._common = given({"source_text": self._file.text, "file_name": self._file.name, "overrides": overrides,
                              "project": project, "request_id": self._request_id})

    def plan(self, explain: bool) -> Plan:
        return Plan(self._client.call("JobService/ResolveJob",
                                      given({**self._common, "for_submit": True, "explain_wait": explain})))

    def run(self) -> Json:
        """The job that was made."""
        plan = self.plan(explain=False)
        if not plan.valid:
            details = [{"field": each["key"], "description": (f"line {each['line']}: " if each["line"] else "")
                        + each["message"]} for each in plan.problems]
            raise InvalidArgument(f"{self._file.name}: {len(details)} problem{'s' * (len(details) > 1)}", details)
        files = [self._sent_file(each) for each in plan.raw["needed_files"]]
        if any(each is None for each in files):
            return self._by_sftctl(plan)
        return self._client.call("JobService/SubmitJob", {**self._common, "files": files})

    def _local(self, needed: Json) -> pathlib.Path:
        folder = pathlib.Path(".") if needed["from_override"] else self._file.folder
        return folder / pathlib.Path(needed["path"])

    def _sent_file(self, needed: Json) -> typing.Optional[Json]:
        """A file that the server has, or gets now. None: it has to be sent by sftctl."""
        path = self._local(needed)
        if path.is_dir():
            return None  # its rows are packed into one file by sftctl
        if not path.is_file():
            raise InvalidArgument("a file that the job names is missing", [
                {"field": needed["key"], "description": f"{path} must be a file of this machine, or node:/path for one "
                                                        "that every node sees"}])
        sha = hashlib.sha256()
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                sha.update(block)
        size = path.stat().st_size
        try:
            _upload.send(self._client, path, sha.hexdigest(), size, self._project)
        except NotFound:
            return None  # a server of an earlier release
        except InvalidArgument as told:
            raise InvalidArgument("a file that the job names cannot be used", [
                {"field": needed["key"], "description": f"{path}: {told.message}"}]) from told
        return {"key": needed["key"], "sha256": sha.hexdigest(), "size": str(size), "client_path": str(path)}

    def _by_sftctl(self, plan: Plan) -> Json:
        """Folders, whose rows sftctl packs into a file, and files for a server of an earlier release."""
        program = os.environ.get("SFTCTL") or shutil.which("sftctl")
        if not program:
            names = ", ".join(each["path"] for each in plan.raw["needed_files"])
            raise FailedPrecondition(
                f"{names}: folders, and files for this server, are sent by sftctl, which is not in PATH (nor named by "
                "SFTCTL): install it, send them once with `sftctl submit` from where it is, or put them where every "
                "node sees them (node:/path)")
        if self._file.path:
            return self._run(program, self._file.path, [])
        # Beside what it names, under a name that is not the job's.
        handle, path = tempfile.mkstemp(prefix=".sft-", suffix=pathlib.PurePath(self._file.name).suffix, dir=".")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self._file.text)
            return self._run(program, path, ["--name", plan.values["job.name"]])
        finally:
            os.unlink(path)

    def _run(self, program: str, path: str, more: typing.List[str]) -> Json:
        address = self._client.address
        command = [program, "--server", address.server, "submit", path, "--json",
                   "--request-id", self._request_id, *more]
        if self._project:
            command += ["--project", self._project]
        for each in self._overrides:
            command += ["--set", f"{each['key']}={each['value']}"]
        environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        environment.update({"SFT_TOKEN": address.token} if address.token else {})
        environment.update({"SFT_CA": address.ca} if address.ca else {})
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return self._client.call("JobService/GetJob", {"name": json.loads(result.stdout)["job"]})
        raise self._error_of(result)

    def _error_of(self, result: "subprocess.CompletedProcess[str]") -> Error:
        code = _CODES.get(result.returncode, "UNKNOWN")
        details: typing.List[Json] = []
        if result.stdout.lstrip().startswith("{"):
            problems = json.loads(result.stdout).get("problems", ())
            details = [{"field": each["key"], "description": (f"line {each['line']}: " if each["line"] else "")
                        + each["message"]} for each in problems]
        if details:
            return error_of(code, f"{self._file.name}: {len(details)} problem{'s' * (len(details) > 1)}", details)
        return error_of(code, result.stderr.strip() or f"sftctl ended with {result.returncode}")
