"""What the checks share: workers in processes of their own, the record of the tasks, waiting, and restarting the broker."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

URL = sys.argv[1]
# The longest that a correct broker may take on a slow machine.
PATIENCE = 120
HOME = tempfile.mkdtemp(prefix="malote-celery-")
RECORD = os.path.join(HOME, "record")

os.environ.update(BROKER_URL=URL, RECORD=RECORD)
CHECKS = []


def check(case):
    """Registers a check."""
    CHECKS.append(case)
    return case


def same(left, right):
    assert left == right, f"{left!r} is not {right!r}"


def eventually(look):
    """The first value of `look` that is neither None nor False."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(0.05)
    raise AssertionError("nothing happened")


def recorded(word):
    """What tasks recorded with this first word."""
    if not os.path.exists(RECORD):
        return []
    with open(RECORD) as lines:
        words = [line.split() for line in lines]
    return [rest for first, *rest in words if first == word]


class Worker:
    """A worker with pool processes, in a process group of its own."""

    def __init__(self, name, *options, queues="celery-checks"):
        self.name = f"{name}@checks"
        self.log = os.path.join(HOME, f"{name}.log")
        command = [sys.executable, "-B", "-m", "celery", "-A", "tasks", "worker", "-n", self.name, "-Q", queues]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [*command, "-l", "INFO", *options],
                cwd=os.path.dirname(__file__),
                env={**os.environ, "WORKER": name, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def is_ready(self):
        assert self.process.poll() is None, f"the worker ended: {self.tail()}"
        with open(self.log) as log:
            return "ready." in log.read()

    def tail(self):
        with open(self.log) as log:
            return log.read()[-600:]

    def kill(self):
        """Kills it with its pool processes, without a goodbye."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError("the worker did not stop") from None


@contextlib.contextmanager
def working(*workers):
    """Waits until the workers are ready, and stops them afterwards."""
    try:
        for worker in workers:
            eventually(worker.is_ready)
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def kill_broker():
    """Has the broker killed with SIGKILL, and waits until it is started again."""
    print("kill the broker", flush=True)
    same(sys.stdin.readline(), "the broker started\n")


def main():
    """Runs the checks, or those with these names, and says how each ended."""
    wanted = sys.argv[2:]
    passed = failed = 0
    for case in CHECKS:
        if wanted and case.__name__ not in wanted:
            continue
        try:
            case()
            print(f"ok {case.__name__}", flush=True)
            passed += 1
        except Exception as error:  # noqa: BLE001
            if os.environ.get("MALOTE_TRACE"):
                traceback.print_exc()
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAILED {case.__name__}: {why}", flush=True)
            print(f"FAILED {case.__name__}: {why}", file=sys.stderr, flush=True)
            failed += 1
    print(f"{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)
