"""A program on a terminal: its keyboard, and what stands on its screen.

The screen knows what ncurses sends to the terminals "xterm-256color", "linux" and "vt100"; a sequence that it does not
know fails the test that receives it.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unicodedata

# Only catches hangs.
DEADLINE_S = 120


class Grid:
    """Rows of characters, changed as the bytes of a terminal's output say."""

    SEQUENCE = re.compile(
        r"\x1b\[([?>]?)([\d;]*)([@-~])|\x1b[()][A-Z0-9]|\x1b([=>78MDEHc])|\x1b\](?:R|P[0-9a-fA-F]{7}|[^\x07\x1b]*(?:\x07|\x1b\\))"
    )

    def __init__(self, columns, rows):
        self.unread, self.colours, self.modes = "", set(), {}
        self.resize(columns, rows)

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.x = self.y = self.top = 0
        self.bottom = rows - 1

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def feed(self, text):
        text = self.unread + text
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            found = self.SEQUENCE.match(text, at)
            if not found:
                if len(text) - at > 64:
                    raise AssertionError(f"a sequence that no terminal of these has: {text[at:at + 64]!r}")
                break
            if found[3]:
                self._control(found[1], [int(each) for each in found[2].split(";") if each], found[3])
            elif found[4] == "M":
                self._up()
            at = found.end()
        self.unread = text[at:]

    def _put(self, letter):
        if letter == "\r":
            self.x = 0
        elif letter == "\n":
            self._down()
        elif letter == "\b":
            self.x = max(0, min(self.x, self.columns - 1) - 1)
        elif letter in "\x07\x0e\x0f":
            pass
        elif ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0:
            raise AssertionError(f"a control character reached the terminal: {letter!r}")
        elif unicodedata.combining(letter):
            pass
        else:
            wide = 2 if unicodedata.east_asian_width(letter) in "WF" else 1
            if self.x + wide > self.columns:
                self.x = 0
                self._down()
            self.cells[self.y][self.x] = letter
            if wide == 2:
                self.cells[self.y][self.x + 1] = ""
            self.x += wide
            self.last = letter

    def _down(self):
        if self.y == self.bottom:
            del self.cells[self.top]
            self.cells.insert(self.bottom, [" "] * self.columns)
        else:
            self.y = min(self.y + 1, self.rows - 1)

    def _up(self):
        if self.y == self.top:
            del self.cells[self.bottom]
            self.cells.insert(self.top, [" "] * self.columns)
        else:
            self.y = max(0, self.y - 1)

    def _control(self, sign, numbers, kind):
        first = numbers[0] if numbers else 0
        many = max(1, first)
        row = self.cells[self.y]
        if kind not in "mhl":
            self.x = min(self.x, self.columns - 1)  # behind the last column it waits for the next character
        if kind in "Hf":
            self.y = min(max(1, first), self.rows) - 1
            self.x = min(max(1, numbers[1] if len(numbers) > 1 else 1), self.columns) - 1
        elif kind == "A":
            self.y = max(0, self.y - many)
        elif kind == "B":
            self.y = min(self.rows - 1, self.y + many)
        elif kind == "C":
            self.x = min(self.columns - 1, self.x + many)
        elif kind == "D":
            self.x = max(0, self.x - many)
        elif kind == "G":
            self.x = min(many, self.columns) - 1
        elif kind == "d":
            self.y = min(many, self.rows) - 1
        elif kind == "J":
            whole = {0: range(self.y + 1, self.rows), 1: range(self.y), 2: range(self.rows)}[first]
            for y in whole:
                self.cells[y] = [" "] * self.columns
            if first < 2:
                self._erase_row(first)
        elif kind == "K":
            self._erase_row(first)
        elif kind == "X":
            row[self.x : self.x + many] = [" "] * len(row[self.x : self.x + many])
        elif kind == "P":
            del row[self.x : self.x + many]
            row += [" "] * (self.columns - len(row))
        elif kind == "@":
            row[self.x : self.x] = [" "] * many
            del row[self.columns :]
        elif kind == "L":
            for _ in range(min(many, self.bottom - self.y + 1)):
                del self.cells[self.bottom]
                self.cells.insert(self.y, [" "] * self.columns)
        elif kind == "M":
            for _ in range(min(many, self.bottom - self.y + 1)):
                del self.cells[self.y]
                self.cells.insert(self.bottom, [" "] * self.columns)
        elif kind == "S":
            for _ in range(many):
                del self.cells[self.top]
                self.cells.insert(self.bottom, [" "] * self.columns)
        elif kind == "r":
            self.top = max(1, first) - 1
            self.bottom = min(numbers[1] if len(numbers) > 1 else self.rows, self.rows) - 1
            self.x = self.y = 0
        elif kind == "b":
            for _ in range(many):
                self._put(self.last)
        elif kind in "hl":
            for number in numbers:
                self.modes[sign + str(number)] = kind == "h"
        elif kind == "m":
            self.colours |= {number for number in numbers if 30 <= number <= 47 and number not in (38, 39)}
        elif kind not in "tc":
            raise AssertionError(f"a sequence that this screen does not know: {sign}{numbers}{kind}")

    def _erase_row(self, how):
        row = self.cells[self.y]
        span = {0: range(self.x, self.columns), 1: range(self.x + 1), 2: range(self.columns)}[how]
        for x in span:
            if x < len(row):
                row[x] = " "


class Terminal:
    """Runs a program on a terminal of its own."""

    def __init__(self, command, columns=80, rows=24, term="xterm-256color", locale="C.UTF-8", **variables):
        self.grid, self.sent, self.status = Grid(columns, rows), 0, None
        environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
        environment.update(TERM=term, LC_ALL=locale, **variables)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            self._set_size(0, columns, rows)
            os.execvpe(command[0], command, environment)
        self.before = termios.tcgetattr(self.fd)
        self.locale = "utf-8" if "UTF-8" in locale else "ascii"
        self.bytes = b""

    @staticmethod
    def _set_size(fd, columns, rows):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        self.grid.resize(columns, rows)
        self._set_size(self.fd, columns, rows)

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def read(self, seconds=0.1):
        """Takes what the program has written; whether it still runs."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the program has gone
            return False
        self.sent += len(data)
        self.bytes += data
        whole = self.bytes.decode(self.locale, errors="ignore")
        rest = len(self.bytes) - len(whole.encode(self.locale))
        if rest > 4:
            raise AssertionError(f"what was written is not {self.locale}: {self.bytes[-200:]!r}")
        self.bytes = self.bytes[len(self.bytes) - rest :] if rest else b""
        self.grid.feed(whole)
        return len(data) > 0

    def see(self, text, gone=False):
        """Waits until the text stands on the screen, or is `gone` from it."""
        end = time.monotonic() + DEADLINE_S
        while (text in self.grid.text()) == gone:
            if not self.read() or time.monotonic() > end:
                raise AssertionError(f"{text!r} is {'still' if gone else 'not'} on the screen:\n{self.grid.text()}")
        return self.grid.text()

    def settle(self, seconds=0.5):
        """Reads until nothing has come for so long."""
        end = time.monotonic() + DEADLINE_S
        seen = -1
        while seen != self.sent and time.monotonic() < end:
            seen = self.sent
            self.read(seconds)

    def end(self):
        """Waits for the program's end; its exit code, negative for a signal."""
        while self.read():
            pass
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def close(self):
        if self.status is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.fd)
