#!/usr/bin/env python3
"""A stand-in for systemctl where no systemd runs: reads unit files as systemd does, for what ours use.

Commands: daemon-reload, enable [--now], start, stop, restart, is-active, status. Each started unit has a
supervisor process that starts the program, starts it again when it ends (Restart=always) and ends it when it
is told to. Honoured: User, Group, EnvironmentFile, Environment in ExecStart, StateDirectory(Mode), LimitNOFILE,
UMask, Restart, RestartSec, KillMode (process, control-group), TimeoutStopSec, Type (notify), WatchdogSec. Unknown keys are an error, so that a
unit cannot ask for what nobody does.
"""

import os
import pathlib
import pwd
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time

UNITS = pathlib.Path("/etc/systemd/system")
STATE = pathlib.Path(os.environ.get("SFT_SYSTEMCTL_STATE", "/run/sft-systemctl"))
# Known and of no effect here: order, hardening and limits of a real system.
IGNORED = {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec", "WantedBy", "NoNewPrivileges",
           "ProtectSystem", "ProtectHome", "Delegate", "LimitMEMLOCK", "TasksMax", "OOMPolicy", "NotifyAccess", "TimeoutStartSec"}
USED = {"User", "Group", "EnvironmentFile", "StateDirectory", "StateDirectoryMode", "ExecStart", "Restart",
        "RestartSec", "KillMode", "TimeoutStopSec", "LimitNOFILE", "Type", "UMask", "WatchdogSec"}


def read_unit(name):
    values = {}
    for number, line in enumerate((UNITS / f"{name}.service").read_text().splitlines(), 1):
        if not line or line[0] in "#;[":
            continue
        key, _, value = line.partition("=")
        if key not in IGNORED | USED:
            sys.exit(f"{name}.service:{number}: {key} is not known to this stand-in")
        values[key] = value
    return values


def read_environment(unit):
    path = unit.get("EnvironmentFile", "").lstrip("-")
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    if path and os.path.exists(path):
        for line in pathlib.Path(path).read_text().splitlines():
            if line and line[0] not in "#;":
                key, _, value = line.partition("=")
                variables[key] = shlex.split(value)[0] if value else ""
    return variables


def command_of(unit, variables):
    """$NAME as a word of its own is split into words, as systemd does."""
    words = []
    for word in shlex.split(unit["ExecStart"]):
        name = re.fullmatch(r"\$([A-Z_]+)", word)
        words += shlex.split(variables.get(name[1], "")) if name else [word]
    return words


def prepare(unit):
    user = pwd.getpwnam(unit["User"]) if "User" in unit else None
    if "StateDirectory" in unit:
        path = pathlib.Path("/var/lib") / unit["StateDirectory"]
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(int(unit.get("StateDirectoryMode", "0755"), 8))
        if user:
            os.chown(path, user.pw_uid, user.pw_gid)

    def in_child():
        os.setsid()
        os.umask(int(unit.get("UMask", "0022"), 8))
        if "LimitNOFILE" in unit:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            wanted = min(int(unit["LimitNOFILE"]), hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        if user:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
    return in_child


def supervise(name):
    """In a process of its own: the unit's program, over and over, until SIGTERM."""
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    log = open(STATE / f"{name}.log", "ab")
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    (STATE / f"{name}.notify").unlink(missing_ok=True)
    notices.bind(str(STATE / f"{name}.notify"))
    (STATE / f"{name}.notify").chmod(0o777)
    notices.settimeout(0.05)
    while not stopping:
        unit = read_unit(name)
        variables = read_environment(unit) | {"NOTIFY_SOCKET": str(STATE / f"{name}.notify")}
        process = subprocess.Popen(command_of(unit, variables), env=variables, stdout=log, stderr=log, cwd="/",
                                   stdin=subprocess.DEVNULL, preexec_fn=prepare(unit))
        (STATE / f"{name}.main").write_text(str(process.pid))
        heard = None
        while process.poll() is None and not stopping:
            try:
                notices.recv(256)
                heard = time.monotonic()
                (STATE / f"{name}.ready").touch()
            except TimeoutError:
                pass
            if heard and time.monotonic() - heard > seconds_of(unit.get("WatchdogSec", "1d")):
                log.write(f"[{name}: says nothing any more]\n".encode())
                process.kill()
        if process.poll() is None:
            end(unit, process)
        log.write(f"[{name}: ended with {process.returncode}]\n".encode())
        log.flush()
        if unit.get("Restart") != "always":
            break
        if not stopping:
            time.sleep(float(unit.get("RestartSec", "0.1")))
    (STATE / f"{name}.ready").unlink(missing_ok=True)
    (STATE / f"{name}.pid").unlink()


def seconds_of(text):
    number, unit = re.fullmatch(r"(\d+)(s|min|d)", text).groups()
    return int(number) * {"s": 1, "min": 60, "d": 86400}[unit]


def end(unit, process):
    kill = process.send_signal
    if unit.get("KillMode", "control-group") == "control-group":
        kill = lambda number: os.killpg(process.pid, number)
    kill(signal.SIGTERM)
    deadline = time.monotonic() + float(unit.get("TimeoutStopSec", "90"))
    while process.poll() is None:
        if time.monotonic() > deadline:
            kill(signal.SIGKILL)
        time.sleep(0.05)


def pid_of(name):
    try:
        pid = int((STATE / f"{name}.pid").read_text())
        os.kill(pid, 0)
        return pid
    except (OSError, ValueError):
        return None


def start(name):
    if pid_of(name):
        return
    STATE.mkdir(parents=True, exist_ok=True)
    waits_for = "ready" if read_unit(name).get("Type") == "notify" else "pid"
    if os.fork():
        while not (STATE / f"{name}.{waits_for}").exists():
            time.sleep(0.02)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    (STATE / f"{name}.pid").write_text(str(os.getpid()))
    supervise(name)
    os._exit(0)


def stop(name):
    pid = pid_of(name)
    if pid:
        os.kill(pid, signal.SIGTERM)
        while (STATE / f"{name}.pid").exists():
            time.sleep(0.05)


def main(words):
    command, names = words[0], [word.removesuffix(".service") for word in words[1:] if not word.startswith("-")]
    if command == "daemon-reload":
        return 0
    for name in names:
        if command == "enable" and "--now" in words or command == "start":
            start(name)
        elif command == "stop":
            stop(name)
        elif command == "restart":
            stop(name)
            start(name)
        elif command in ("is-active", "status"):
            print("active" if pid_of(name) else "inactive")
            return 0 if pid_of(name) else 3
        elif command != "enable":
            sys.exit(f"{command} is not known to this stand-in")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
