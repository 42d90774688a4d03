"""RabbitMQ's behaviour as Celery sees it. Usage: main.py URL [CHECK ...]"""

import os
import time
from collections import Counter
from datetime import datetime, timedelta, timezone

from celery import chain, group
from celery.exceptions import MaxRetriesExceededError, TaskRevokedError, TimeoutError  # noqa: A004
from kombu import Connection

import harness
from harness import PATIENCE, Worker, check, eventually, kill_broker, recorded, same, working
from tasks import LATER, add, announce, app, described, flaky, hopeless, nap, note, dying, unwanted

TASKS = 5_000
NOTES = 400


def declare():
    """Declares what the workers would, so that tasks that are sent before a worker exists have a queue."""
    with app.connection_for_write() as connection:
        for queue in app.amqp.queues.values():
            if not queue.name.startswith("everyone"):
                queue(connection.default_channel).declare()


def depth(queue):
    with app.connection_for_read() as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


@check
def five_thousand_tasks_and_a_killed_worker():
    """Every task runs, and its result arrives, although a worker is killed while it holds tasks."""
    doomed = Worker("doomed", "-c", "2", "--prefetch-multiplier", "20")
    with working(Worker("steady", "-c", "2", "--prefetch-multiplier", "20"), doomed):
        results = [add.delay(number, 1) for number in range(TASKS)]
        eventually(lambda: len(recorded("add")) > TASKS // 10)
        doomed.kill()
        same([result.get(timeout=PATIENCE) for result in results], [number + 1 for number in range(TASKS)])
    runs = Counter(int(number) for (number,) in recorded("add"))
    same(set(runs), set(range(TASKS)))
    # Only what the killed worker held runs again.
    again = sum(runs.values()) - TASKS
    assert again <= 2 + 2 * 20, f"{again} tasks ran again"
    same(depth("celery-checks"), 0)


@check
def the_broker_is_killed_while_tasks_run():
    """Workers connect again; no confirmed task is lost."""
    with working(Worker("survivor", "-c", "2")):
        for number in range(NOTES):
            note.delay(number)
        eventually(lambda: len(recorded("note")) > NOTES // 10)
        kill_broker()
        for number in range(NOTES, NOTES + 20):
            note.apply_async((number,), retry=True, retry_policy={"max_retries": 50, "interval_step": 0.2})
        eventually(lambda: {int(number) for (number,) in recorded("note")} == set(range(NOTES + 20)))
        eventually(lambda: depth("celery-checks") == 0)
        same(add.delay(1, 2).get(timeout=PATIENCE), 3)


@check
def retries_wait_and_are_counted():
    with working(Worker("retrying", "-c", "2")):
        before = len(recorded("flaky"))
        results = [flaky.delay(number) for number in range(20)]
        same([result.get(timeout=PATIENCE) for result in results], [2] * 20)
        same(len(recorded("flaky")) - before, 60)
        try:
            hopeless.delay().get(timeout=PATIENCE)
            raise AssertionError("it must fail")
        except (ValueError, MaxRetriesExceededError) as error:
            assert "never works" in str(error), error
        same(len(recorded("hopeless")), 3)


@check
def tasks_with_a_time_do_not_block_others():
    """A worker holds tasks until their time. It raises its prefetch limit, so that others still come."""
    with working(Worker("patient", "-c", "1", "--prefetch-multiplier", "2")):
        begun = time.time()
        later = [add.apply_async((number, 0), countdown=8) for number in range(20)]
        eta = add.apply_async((99, 0), eta=datetime.now(timezone.utc) + timedelta(seconds=8))
        eventually(lambda: len(app.control.inspect(["patient@checks"]).scheduled()["patient@checks"]) == 21)
        quick = add.delay(1, 1)
        same(quick.get(timeout=PATIENCE), 2)
        assert not any(result.ready() for result in later), "a task was early"
        same([result.get(timeout=PATIENCE) for result in [*later, eta]], [*range(20), 99])
        assert time.time() - begun >= 8, "a task was early"


@check
def a_task_whose_process_dies_runs_again():
    with working(Worker("mortal", "-c", "1")):
        same(dying.delay().get(timeout=PATIENCE), "survived")
        same(recorded("dying"), [["False"], ["True"]])


@check
def a_rejected_task_is_dead_lettered():
    declare()
    with working(Worker("guard", "-c", "1", queues="guarded")):
        task = unwanted.apply_async(queue="guarded", headers={"tenant": "a"})
        eventually(lambda: depth("graves") == 1)
    with Connection(harness.URL) as connection:
        dead = connection.default_channel.basic_get("graves", no_ack=True)
    death = dead.headers["x-death"][0]
    same([death["queue"], death["reason"], death["count"], death["routing-keys"]], ["guarded", "rejected", 1, ["guarded"]])
    same([dead.headers["id"], dead.headers["tenant"]], [task.id, "a"])


@check
def urgent_tasks_run_first():
    declare()
    begun = len(recorded("add"))
    for priority in (0, 9, 3, 9, 5, 0):
        add.apply_async((priority * 10, 0), queue="ordered", priority=priority, ignore_result=True)
    with working(Worker("sorting", "-c", "1", "--prefetch-multiplier", "1", queues="ordered")):
        eventually(lambda: len(recorded("add")) - begun == 6)
    same([int(number) for (number,) in recorded("add")[begun:]], [90, 90, 50, 30, 0, 0])


@check
def workers_are_inspected_and_controlled():
    with working(Worker("first", "-c", "1"), Worker("second", "-c", "1")):
        both = {"first@checks", "second@checks"}
        eventually(lambda: set(app.control.inspect().ping() or {}) == both)
        inspect = app.control.inspect()
        same({name: [queue["name"] for queue in queues] for name, queues in inspect.active_queues().items()},
             {name: ["celery-checks"] for name in both})
        assert "tasks.add" in inspect.registered()["first@checks"]
        same(inspect.stats()["first@checks"]["pool"]["max-concurrency"], 1)
        # One destination, and a worker that takes no more from the queue.
        same(app.control.cancel_consumer("celery-checks", destination=["second@checks"], reply=True),
             [{"second@checks": {"ok": "no longer consuming from celery-checks"}}])
        same([nap.delay(0).get(timeout=PATIENCE) for _ in range(5)], [0] * 5)
        app.control.add_consumer("extra", destination=["second@checks"], reply=True)
        same(add.apply_async((4, 4), queue="extra").get(timeout=PATIENCE), 8)
        # A task that waits is revoked; one that runs is terminated.
        busy = nap.delay(60)
        eventually(lambda: any(task["id"] == busy.id for tasks in inspect.active().values() for task in tasks))
        waiting = nap.delay(61)
        eventually(lambda: any(task["id"] == waiting.id for tasks in (inspect.reserved() or {}).values() for task in tasks))
        waiting.revoke()
        eventually(lambda: waiting.id in inspect.revoked()["first@checks"])
        busy.revoke(terminate=True)
        for revoked in (busy, waiting):
            try:
                revoked.get(timeout=PATIENCE)
                raise AssertionError("it was not revoked")
            except TaskRevokedError:
                pass
        same(app.control.rate_limit("tasks.add", "100/s", reply=True, destination=["first@checks"]),
             [{"first@checks": {"ok": "new rate limit set successfully"}}])
        same(app.control.pool_grow(1, reply=True, destination=["first@checks"]), [{"first@checks": {"ok": "pool will grow"}}])
        same(app.control.purge(), 0)


@check
def a_worker_is_shut_down_by_a_message():
    worker = Worker("leaving", "-c", "1")
    eventually(worker.is_ready)
    app.control.shutdown(destination=[worker.name])
    same(worker.process.wait(PATIENCE), 0)


@check
def events_of_tasks_are_broadcast():
    with working(Worker("watched", "-c", "1", "-E")):
        kinds = []
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": lambda event: kinds.append((event["type"], event.get("uuid")))})
            with receiver.consumer_context() as (receiving, _, _):
                result = add.delay(5, 5)

                def seen():
                    try:
                        receiving.drain_events(timeout=0.1)
                    except OSError:
                        pass
                    return ("task-succeeded", result.id) in kinds

                eventually(seen)
        same([kind for kind, task in kinds if task == result.id], ["task-received", "task-started", "task-succeeded"])
        result.get(timeout=PATIENCE)


@check
def a_broadcast_reaches_every_worker():
    with working(Worker("left", "-c", "1", queues="everyone"), Worker("right", "-c", "1", queues="everyone")):
        announce.apply_async(("hello",), queue="everyone", exchange="everyone", routing_key="")
        eventually(lambda: sorted(recorded("announce")) == [["left", "hello"], ["right", "hello"]])


@check
def chains_groups_and_headers():
    with working(Worker("composing", "-c", "2")):
        same(chain(add.s(1, 1), add.s(10), add.s(100))().get(timeout=PATIENCE), 112)
        same(group(add.s(number, number) for number in range(10))().get(timeout=PATIENCE), [2 * number for number in range(10)])
        same(described.apply_async(priority=3, headers={"tenant": "b"}).get(timeout=PATIENCE),
             ["", "celery-checks", 3, "b"])
        try:
            nap.apply_async((0,), queue="nobody-serves-this").get(timeout=0.5)
            raise AssertionError("nobody could have run it")
        except TimeoutError:
            pass
        large = "x" * 3_000_000
        same(add.delay(large, "y").get(timeout=PATIENCE), large + "y")


@check
def quorum_queues_delay_tasks_in_the_broker():
    """Celery delays tasks by 28 queues that expire into each other."""
    os.environ["QUORUM"] = "1"
    app.amqp.queues.add(LATER)
    with working(Worker("delaying", "-c", "1", queues="later")):
        begun = time.time()
        result = add.apply_async((7, 7), queue="later", routing_key="later", countdown=5)
        same(add.apply_async((1, 0), queue="later", routing_key="later").get(timeout=PATIENCE), 1)
        same(app.control.inspect().scheduled(), {"delaying@checks": []})
        assert not result.ready(), "it was early"
        same(result.get(timeout=PATIENCE), 14)
        assert time.time() - begun >= 4, "it was early"


harness.main()
