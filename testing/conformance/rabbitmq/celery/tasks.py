"""The application that the workers run: its settings and its tasks. `BROKER_URL` and `RECORD` are in the environment."""

import os
import signal
import time

from celery import Celery
from celery.exceptions import Reject
from kombu import Exchange, Queue
from kombu.common import Broadcast

RECORD = os.environ["RECORD"]

app = Celery("tasks", broker=os.environ["BROKER_URL"], backend="rpc://")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_default_queue="celery-checks",
    task_queues=[
        Queue("celery-checks", Exchange("celery-checks"), "celery-checks"),
        Queue("ordered", Exchange("celery-checks"), "ordered", queue_arguments={"x-max-priority": 10}),
        Queue(
            "guarded",
            Exchange("celery-checks"),
            "guarded",
            queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"},
        ),
        Queue("graves"),
        Broadcast("everyone", queue=f"everyone-{os.environ.get('WORKER', 'none')}"),
    ],
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"confirm_publish": True, "max_retries": 50},
    worker_send_task_events=True,
    result_expires=600,
)

# With a quorum queue, Celery sets no prefetch limit for a channel and lets the broker delay tasks.
LATER = Queue("later", Exchange("later", type="topic"), "later", queue_arguments={"x-queue-type": "quorum"})
if "QUORUM" in os.environ:
    app.amqp.queues.add(LATER)


def record(*words):
    """Adds a line to the record; lines of several processes do not mix."""
    line = " ".join(str(word) for word in words) + "\n"
    descriptor = os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


@app.task
def add(left, right):
    record("add", left)
    return left + right


@app.task(ignore_result=True)
def note(number):
    record("note", number)


@app.task
def nap(seconds):
    record("nap")
    time.sleep(seconds)
    return seconds


@app.task(bind=True, max_retries=3)
def flaky(self, number):
    """Succeeds at the third attempt."""
    record("flaky", number)
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return self.request.retries


@app.task(autoretry_for=(ValueError,), max_retries=2, retry_backoff=False, default_retry_delay=0.1)
def hopeless():
    record("hopeless")
    raise ValueError("it never works")


@app.task(bind=True)
def dying(self):
    """Ends its own process the first time."""
    record("dying", self.request.delivery_info["redelivered"])
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@app.task
def unwanted():
    raise Reject("it is unwanted", requeue=False)


@app.task(bind=True)
def described(self):
    info = self.request.delivery_info
    return [info["exchange"], info["routing_key"], info["priority"], self.request.headers and self.request.headers.get("tenant")]


@app.task(ignore_result=True)
def announce(text):
    record("announce", os.environ["WORKER"], text)
