#!/usr/bin/env python3
"""Browsers' tabs on running jobs, for service_load.py: the feed of a job's page, read by one process.

    tests/bench/tabs.py HOST:PORT COUNT SECONDS JOB...

Opens COUNT feeds on these jobs in turn and prints {"open": COUNT} once each has sent something; for SECONDS it then
reads the time in each point that comes and takes what has passed since as the point's delay. Prints the delays, and
how many feeds ended or were refused, as a line of JSON.
"""

import datetime
import json
import re
import selectors
import socket
import sys
import time

TIME = re.compile(rb'"time":"([^"]+)"')
PATIENCE_S = 600


class Tab:
    def __init__(self, host, port, job):
        self.socket = socket.create_connection((host, port))
        self.socket.sendall(f"GET /api/v1/feed?job={job}&metrics=0&log=0:0 HTTP/1.1\r\nHost: {host}:{port}\r\n"
                            "Accept: text/event-stream\r\n\r\n".encode())
        self.socket.setblocking(False)
        self.rest = b""
        self.speaks = False

    def read(self):
        """The lines that have come; None: the feed has ended or was refused."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return []
        if not data or (not self.speaks and not data.startswith(b"HTTP/1.1 200 ")):
            return None
        self.speaks = True
        *lines, self.rest = (self.rest + data).split(b"\n")
        return lines


def microseconds(text):
    return datetime.datetime.fromisoformat(text.decode()).timestamp() * 1e6


def delays_in(lines, since_us, now_us):
    """Of the points in these lines that were made since then, in milliseconds."""
    times = [microseconds(each) for line in lines if line.startswith(b'data: {"points"') for each in TIME.findall(line)]
    return [(now_us - each) / 1e3 for each in times if each >= since_us]


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    count, seconds, jobs = int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    selector = selectors.DefaultSelector()
    for number in range(count):
        tab = Tab(host, int(port), jobs[number % len(jobs)])
        selector.register(tab.socket, selectors.EVENT_READ, tab)
    delays, broken, speaking, since_us = [], 0, 0, None
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and broken < count:
        for key, _ in selector.select(0.1):
            spoke = key.data.speaks
            lines = key.data.read()
            if lines is None:
                broken += 1
                selector.unregister(key.fileobj)
                continue
            speaking += key.data.speaks and not spoke
            if since_us is not None:
                delays += delays_in(lines, since_us, time.time() * 1e6)
        if since_us is None and speaking + broken >= count:
            print(json.dumps({"open": speaking}), flush=True)
            since_us, end = time.time() * 1e6, time.monotonic() + seconds
    delays.sort()

    def at(share):
        return round(delays[int(share * (len(delays) - 1))], 3) if delays else 0
    print(json.dumps({"broken": broken, "count": len(delays), "p50_ms": at(0.5), "p95_ms": at(0.95),
                      "p99_ms": at(0.99), "max_ms": at(1)}))
    return 1 if broken or not delays else 0


if __name__ == "__main__":
    sys.exit(main())
