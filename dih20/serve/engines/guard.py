"""Stand between the gateway and one rank, so that nothing of the rank outlives either.

python -I -S guard.py CONTROL -- COMMAND...      CONTROL: the guard's end of a socket to the gateway

The guard is a subreaper: whatever the rank starts, in a session of its own or not, stays below it.
It ends all of that when the rank has ended or the gateway is gone (its end of CONTROL is closed).
It copies the rank's output line by line to its own, marked with the rank, and tells the gateway
the last line a few times a second; a rank that floods its log costs the gateway nothing.
Told on CONTROL, one JSON object a line: {"line"}, and at the end {"exit", "tail", "left"}.
Standard library only: it must start fast and stay small.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SET_PDEATHSIG, SET_SUBREAPER = 1, 36
_TAIL_LINES, _LINE_BYTES, _TELL_EVERY_S = 60, 4000, 0.2


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def children(pid: int) -> list[int]:
    """Give the pids whose parent is this one."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # it ended while we looked
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(entry.name))
    return found


def end_all(deadline_s: float = 5.0) -> list[int]:
    """Kill every descendant, also those that appear meanwhile; give those that would not die."""
    until = time.monotonic() + deadline_s
    while True:
        below: list[int] = []
        queue = [os.getpid()]
        while queue:
            more = children(queue.pop())
            below += more
            queue += more
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        if time.monotonic() > until:
            return below
        time.sleep(0.01)


class Output:
    """The rank's lines: marked, shortened, copied on; the last ones kept."""

    def __init__(self, name: str) -> None:
        self.mark = f"[{name}] ".encode()
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self.held, self.cut = b"", 0

    def feed(self, data: bytes) -> None:
        *lines, self.held = (self.held + data).split(b"\n")
        if len(self.held) > _LINE_BYTES:
            self.cut += len(self.held) - _LINE_BYTES
            self.held = self.held[:_LINE_BYTES]
        if not lines:
            return
        shown = []
        for line in lines:
            over = max(0, len(line) - _LINE_BYTES) + self.cut
            self.cut = 0
            line = line[:_LINE_BYTES] + (b" ... %d bytes cut" % over if over else b"")
            self.tail.append(line.decode(errors="replace"))
            shown.append(self.mark + line + b"\n")
        copy(b"".join(shown))

    def end(self) -> None:
        if self.held:
            self.feed(b"\n")


def copy(data: bytes) -> None:
    with contextlib.suppress(OSError):  # whoever read it is gone; the rank must not end for that
        while data:
            data = data[os.write(1, data) :]


def tell(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the gateway is gone, and the next poll sees that
        control.sendall(json.dumps(message).encode() + b"\n")


def drain(pipe: int, output: Output) -> None:
    """Take what the rank wrote last; what its children still write is not waited for."""
    os.set_blocking(pipe, False)
    try:
        for _ in range(16):
            data = os.read(pipe, 1 << 16)
            if not data:
                break
            output.feed(data)
    except BlockingIOError:
        pass
    output.end()


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    name, command = sys.argv[2], sys.argv[4:]
    keep = int(command[-1])
    prctl(SET_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the gateway decides when a rank ends
    me = os.getpid()

    def before() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        prctl(SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)

    rank = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(keep,),
        preexec_fn=before,
        bufsize=0,
    )
    os.close(keep)
    output = Output(name)
    watch(control, rank, output)
    code = rank.poll()
    left = end_all()  # reaps the rank too, when it was still running
    code = -signal.SIGKILL if code is None else code
    tell(control, {"exit": code, "tail": list(output.tail), "left": left})
    return 0


def watch(control: socket.socket, rank: subprocess.Popen[bytes], output: Output) -> None:
    """Copy output until the rank has ended or the gateway is gone."""
    assert rank.stdout is not None
    pipe, told, untold = rank.stdout.fileno(), 0.0, False
    pidfd = os.pidfd_open(rank.pid)
    poller = select.poll()
    for fd in (pipe, pidfd, control.fileno()):
        poller.register(fd, select.POLLIN)
    while True:
        wait_s = max(0.0, told + _TELL_EVERY_S - time.monotonic()) if untold else None
        ready = {fd for fd, _ in poller.poll(wait_s and wait_s * 1000)}
        if pipe in ready:
            data = os.read(pipe, 1 << 16)
            if data:
                output.feed(data)
                untold = bool(output.tail)
            else:
                poller.unregister(pipe)
        now = time.monotonic()
        if untold and now - told >= _TELL_EVERY_S:
            told, untold = now, False
            tell(control, {"line": output.tail[-1]})
        if pidfd in ready:
            drain(pipe, output)
            return
        if control.fileno() in ready:
            return


if __name__ == "__main__":
    sys.exit(main())
