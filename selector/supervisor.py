"""Starts one command, stays its subreaper, and leaves no process behind. Run as a script.

`python -I -S supervisor.py RUN_DIR -- COMMAND…`: standard library only, one process beside the
job. Everything the command starts, daemons included, becomes a descendant of this process; when
the command ends, or this process is told to stop (SIGTERM, or its parent's death), every
descendant is ended, and `waitpid` saying ECHILD is the proof that none is left.
Writes RUN_DIR/supervised.json. The job's output goes to RUN_DIR/output.log: the first 256 KiB and
the last 256 KiB of it.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KEPT_BYTES = 256 * 1024
GRACE_S = 1.0


class Output:
    """The head and the tail of what the job prints: megabytes must not fill the disk."""

    def __init__(self, place):
        self.place, self.head, self.tail, self.size = place, b"", b"", 0

    def take(self, data):
        """Keep what of the data belongs to the head or the tail."""
        self.size += len(data)
        room = KEPT_BYTES - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail = (self.tail + data)[-KEPT_BYTES:]

    def write(self):
        """Write both parts, with a line between them where something was left out."""
        left_out = self.size - len(self.head) - len(self.tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out > 0 else b""
        with open(self.place, "wb") as file:
            file.write(self.head + middle + self.tail)


def prctl(option, value):
    """Set a property of this process; a kernel without it is no reason to stop."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants():
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


def reap():
    """Collect ended children; return {pid: status}, and whether any child is left."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def end_all(statuses):
    """End every descendant: SIGTERM, a second, SIGKILL; return how many there were."""
    killed = set()
    deadline = time.monotonic() + GRACE_S
    while True:
        ended, left = reap()
        statuses.update(ended)
        if not left:
            return len(killed)
        late = time.monotonic() > deadline
        for pid in descendants():
            if late or pid not in killed:
                killed.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                except ProcessLookupError:
                    pass
        time.sleep(0.005 if not late else 0.05)


def spawn(command):
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
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def watch(pid, pipe, output, statuses, told):
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


def drain(pipe, output):
    """Take what is still in the pipe, without waiting for writers that live on."""
    os.set_blocking(pipe, False)
    try:
        while data := os.read(pipe, 65536):
            output.take(data)
    except OSError:
        pass


def main(run_dir, command):
    """Run the command; return its exit status as a shell would give it."""
    told, statuses = [], {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, frame: told.append(n))
    signal.signal(signal.SIGCHLD, lambda n, frame: None)
    parent = os.getppid()
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1
    output = Output(os.path.join(run_dir, "output.log"))
    pid, pipe = spawn(command)
    watch(pid, pipe, output, statuses, told)
    drain(pipe, output)
    killed = end_all(statuses)
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
        sys.stderr.write(f"the run's folder cannot be written: {error}\n")
        return 74
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[3:]))
