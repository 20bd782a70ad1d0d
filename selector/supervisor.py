"""Starts one command, stays its subreaper, and leaves no process behind. Run as a script.

`python -I -S supervisor.py RUN_DIR PARENT -- COMMAND…`: standard library only, one process beside
the job. Everything the command starts, daemons included, becomes a descendant of this process; when
the command ends, or this process is told to stop (SIGTERM, or its parent's death), every
descendant is ended, and `waitpid` saying ECHILD is the proof that none is left. SIGUSR1 says that
the slice is over: nothing of the job is to run any more, so nobody is asked politely.
Writes RUN_DIR/supervised.json. The job's output goes to RUN_DIR/output.log: the first 256 KiB and
the last 256 KiB of it.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, F_GETPIPE_SZ = 1, 36, 1032
KEPT_BYTES = 256 * 1024
GRACE_S = 1.0
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Output:
    """The head and the tail of what the job prints: megabytes must not fill the disk."""

    def __init__(self, place: str) -> None:
        self.place, self.head, self.tail, self.size = place, b"", b"", 0

    def take(self, data: bytes) -> None:
        """Keep what of the data belongs to the head or the tail."""
        self.size += len(data)
        room = KEPT_BYTES - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail = (self.tail + data)[-KEPT_BYTES:]

    def write(self) -> None:
        """Write both parts, with a line between them where something was left out."""
        left_out = self.size - len(self.head) - len(self.tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out > 0 else b""
        with open(self.place, "wb") as file:
            file.write(self.head + middle + self.tail)


def prctl(option: int, value: int) -> None:
    """Set a property of this process; a kernel without it is no reason to stop."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants() -> list[int]:
    """Return the pids of all processes below this one, from /proc."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found, frontier = [], [os.getpid()]
    while frontier:
        parent = frontier.pop()
        children = [pid for pid, above in parents.items() if above == parent]
        found += children
        frontier += children
    return found


def reap() -> tuple[dict[int, int], bool]:
    """Collect ended children; return {pid: status}, and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def end_all(statuses: dict[int, int], told: list[int]) -> int:
    """End every descendant: SIGTERM, a second, SIGKILL; return how many there were.

    SIGKILL at once when SIGUSR1 was told.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + GRACE_S
    while True:
        ended, left = reap()
        statuses.update(ended)
        if not left:
            return len(killed)
        late = signal.SIGUSR1 in told or time.monotonic() > deadline
        for pid in descendants():
            if late or pid not in killed:
                killed.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                except ProcessLookupError:
                    pass
        time.sleep(0.005)


def spawn(command: list[str]) -> tuple[int, int]:
    """Start the command with its output in a pipe; return (pid, pipe)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(reading)
        os.close(writing)
        signal.set_wakeup_fd(-1)
        # Python ignores two that a program expects to have; an ignored one is inherited.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *STOPPING, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def watch(pid: int, pipe: int, output: Output, statuses: dict[int, int], told: list[int]) -> None:
    """Read the output until the command ends or we are told to stop."""
    wake, poke = os.pipe()
    os.set_blocking(poke, False)
    signal.set_wakeup_fd(poke)
    open_pipes = [pipe]
    while pid not in statuses and not told:
        ready, _, _ = select.select([wake, *open_pipes], [], [], 0.5)
        if wake in ready:
            os.read(wake, 4096)
        if pipe in ready:
            data = os.read(pipe, 65536)
            output.take(data)
            if not data:  # all writers are gone; the command may live on
                open_pipes = []
        statuses.update(reap()[0])


def drain(pipe: int, output: Output) -> None:
    """Take what is still in the pipe, no more than it holds: a writer may live on, and on."""
    os.set_blocking(pipe, False)
    size = fcntl.fcntl(pipe, F_GETPIPE_SZ)
    try:
        while size > 0 and (data := os.read(pipe, 65536)):
            output.take(data)
            size -= len(data)
    except OSError:
        pass


def main(run_dir: str, parent: int, command: list[str]) -> int:
    """Run the command for the process `parent`; return 0, or 74 where its end cannot be told."""
    told: list[int] = []
    statuses: dict[int, int] = {}
    for number in STOPPING:
        signal.signal(number, lambda n, frame: told.append(n))
    signal.signal(signal.SIGCHLD, lambda n, frame: None)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:  # it died before the kernel was asked to tell
        return 1
    output = Output(os.path.join(run_dir, "output.log"))
    try:
        pid, pipe = spawn(command)
        watch(pid, pipe, output, statuses, told)
        drain(pipe, output)
    finally:
        killed = end_all(statuses, told)
    drain(pipe, output)
    status = statuses.get(pid)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    try:
        output.write()
        place = os.path.join(run_dir, "supervised.json")
        with open(place + ".tmp", "w") as file:
            json.dump({"exit_code": code, "told": bool(told), "killed": killed}, file)
        os.replace(place + ".tmp", place)
    except OSError as error:
        sys.stderr.write(f"the run folder {run_dir} cannot be written: {error.strerror}\n")
        return 74
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[4:]))
