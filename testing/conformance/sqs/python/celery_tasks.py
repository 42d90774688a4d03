"""Celery with its SQS transport runs 5,000 tasks: `python celery_tasks.py PATH-OF-THE-BINARY`.

This file is also the worker's application. Environment variables then contain the broker's address and the file to which
each task writes its number.
"""

import collections
import os
import subprocess
import sys
import tempfile
import time

from celery import Celery

TASKS = 5000
# A worker that does nothing for this time is stuck.
PATIENCE_S = 120

app = Celery("celery_tasks")
app.conf.update(
    broker_url=os.environ.get("MALOTE_CELERY_BROKER"),
    broker_transport_options={"is_secure": False, "region": "eu-west-1", "wait_time_seconds": 2, "polling_interval": 0},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=10,
)


@app.task(name="note")
def note(number):
    with open(os.environ["MALOTE_CELERY_NOTES"], "a") as notes:
        notes.write(f"{number}\n")


def numbers(path):
    with open(path) as notes:
        return [int(line) for line in notes]


def all_tasks_are_done_once(broker):
    address = broker.sqs_url.removeprefix("http://")
    with tempfile.NamedTemporaryFile() as notes:
        environment = {
            **os.environ,
            "MALOTE_CELERY_BROKER": f"sqs://made:up@{address}",
            "MALOTE_CELERY_NOTES": notes.name,
            "PYTHONPATH": os.path.dirname(os.path.abspath(__file__)),
        }
        app.conf.broker_url = environment["MALOTE_CELERY_BROKER"]
        for number in range(TASKS):
            note.delay(number)
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--pool=threads", "--concurrency=4"]
        quiet = ["--loglevel=warning", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        worker = subprocess.Popen(command + quiet, env=environment, stdout=subprocess.DEVNULL)
        try:
            done, since = 0, time.monotonic()
            while done < TASKS and time.monotonic() - since < PATIENCE_S:
                time.sleep(0.5)
                assert worker.poll() is None, "the worker ended"
                now = len(numbers(notes.name))
                if now > done:
                    done, since = now, time.monotonic()
        finally:
            worker.terminate()
            worker.wait(PATIENCE_S)
        counts = collections.Counter(numbers(notes.name))
        missing = [number for number in range(TASKS) if number not in counts]
        assert not missing, f"{len(missing)} tasks were not run, including {missing[:5]}"
        twice = [number for number, count in counts.items() if count > 1]
        assert not twice, f"{len(twice)} tasks ran more than once, including {twice[:5]}"
    sqs = broker.client()
    url = sqs.get_queue_url(QueueName="celery")["QueueUrl"]
    for which in ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]:
        assert harness.attribute(sqs, url, which) == "0", which


if __name__ == "__main__":
    import harness

    broker = harness.Broker(sys.argv[1])
    good = harness.run([all_tasks_are_done_once], broker)
    broker.stop()
    sys.exit(0 if good else 1)
