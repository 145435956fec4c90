"""One call of gpu_check: its clock, the programs that it starts, and all that it writes.

gpu_check.json    one JSON object a line, written as results come; further calls are added
logs/NAME.txt     the command line of every program, and its complete output
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

# Of a call's time, kept for what is left to do when the last program is stopped.
RESERVE, MOST_RESERVE_SECONDS = 0.1, 10
KILL_SECONDS = 2  # a process that waits for a driver may not even die of SIGKILL


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "no output"


class Ran:
    """What became of a program."""

    def __init__(self, text="", status=None, problem=None, seconds=0.0):
        self.text = text  # all that it printed
        self.status = status
        self.seconds = seconds
        self.problem = problem or self._problem()  # None: it ended well

    def _problem(self):
        last = last_line(self.text)
        if self.status < 0:
            return f"WRONG signal {signal.Signals(-self.status).name}: {last}"
        if self.status > 0:
            return f"WRONG status {self.status}: {last}"
        return None if self.text.strip() else "WRONG printed nothing"


class Call:
    def __init__(self, here, folder, names, seconds):
        self.here, self.folder = Path(here), Path(folder)
        self.start = time.monotonic()
        self.seconds = seconds - min(RESERVE * seconds, MOST_RESERVE_SECONDS)
        self.deadline = self.start + self.seconds  # of the check that runs
        self.gpu = {}  # what the device check has found
        self.failed = False
        self.logs = self.folder / "logs"
        self.logs.mkdir(exist_ok=True)
        self.work = Path(tempfile.mkdtemp(prefix="gpu_check."))
        self.json = self.folder / "gpu_check.json"
        self.rows = self._read_earlier()  # and this call's
        self.changes = {}  # of the environment of our own programs
        now = time.strftime("%FT%TZ", time.gmtime())
        self._write({"call": names, "seconds": seconds, "time": now})

    def left(self):
        return self.deadline - time.monotonic()

    def builds(self):
        """What to add to a name, and the folder of programs: ours, and an earlier build's."""
        old = self.here / "old"
        return [("", self.here)] + ([(", old", old)] if old.exists() else [])

    def known(self, check, name):
        """The last row of that name that has a time, or None."""
        return next((row for row in reversed(self.rows) if "ms" in row
                     and (row.get("check"), row.get("name")) == (check, name)), None)

    def ask(self, check, question):
        """The heading of a check's rows: the question that they answer."""
        print(f"\n{check}: {question}", flush=True)
        self._write({"question": question, "of": check})

    def note(self, check, name, result, **figures):
        """A row of the table, and of gpu_check.json.

        A result fails the call unless it is ok, or "not possible: why" on this machine.
        """
        self.failed = self.failed or not (result == "ok" or result.startswith("not possible: "))
        shown = "".join(f"  {key} {value:.4g}" if isinstance(value, float) else f"  {key} {value}"
                        for key, value in figures.items())
        print(f"{check:<11} {name:<50} {result}{shown}", flush=True)
        self.rows.append({"check": check, "name": name, "result": result, **figures})
        self._write(self.rows[-1])

    def run(self, name, command, seconds=None, env=None, ours=True):
        """Runs a program until it ends, or its time is over; its output goes to logs/NAME.txt.

        `env` is set in its environment. Ours find cuBLASLt, NCCL and CUPTI; other programs keep
        their own libraries.
        """
        limit = self.left() if seconds is None else min(seconds, self.left())
        if limit <= 0:
            return Ran(problem="not started: no time left")
        command = [str(word) for word in command]
        changes = {"PYTHONUNBUFFERED": "1", **(self.changes if ours else {}), **(env or {})}
        environment = {**os.environ, **changes}
        environment.pop("NVIDIA_TF32_OVERRIDE", None)  # fp32 products keep their precision
        log = self.logs / f"{name.replace('/', '_').replace(' ', '_')}.txt"
        header = "$ " + shlex.join(["env", "-u", "NVIDIA_TF32_OVERRIDE",
                                    *(f"{k}={v}" for k, v in changes.items()), *command])
        began = time.monotonic()
        with open(log, "w") as out:
            print(header, file=out, flush=True)
            try:
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                         stderr=subprocess.STDOUT, cwd=self.work, env=environment,
                                         start_new_session=True)
            except OSError as error:
                print(error, file=out)
                return Ran(problem=f"WRONG cannot be started: {error}")
            try:
                status = child.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self._kill_group(child)
        text = log.read_text(errors="replace")[len(header) + 1:]
        took = time.monotonic() - began
        if status is not None:
            return Ran(text, status, seconds=took)
        cut = f"cut off after {took:.1f} s"
        with open(log, "a") as out:
            print(f"\ngpu_check: {cut}", file=out)
        return Ran(text, problem=f"{cut}: {last_line(text)}", seconds=took)

    def finish(self):
        """Packs the logs into one file. Returns the exit status."""
        with tarfile.open(self.folder / "gpu_check_logs.tar.gz", "w:gz") as packed:
            packed.add(self.logs, "logs")
        shutil.rmtree(self.work, ignore_errors=True)
        return 1 if self.failed else 0

    @staticmethod
    def _kill_group(child):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            child.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            pass

    def _read_earlier(self):
        """The rows of earlier calls in this folder."""
        if not self.json.exists():
            return []
        rows = []
        for line in self.json.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                pass  # the end of a call that was killed
        return rows

    def _write(self, row):
        with open(self.json, "a") as out:
            print(json.dumps(row), file=out, flush=True)
