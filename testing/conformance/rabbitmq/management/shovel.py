"""A shovel of RabbitMQ carries a queue to Malote and back, while Malote is killed. Usage: shovel.py API RABBITMQ MALOTE"""

import sys
import time

import pika

from api import Api, check, eventually, main

MESSAGES = 5_000
PREFETCH = 100
KILLS = 2
VHOST = "0"


def kill_broker():
    """Has Malote killed with SIGKILL, and waits until it is started again."""
    print("kill the broker", flush=True)
    assert sys.stdin.readline() == "the broker started\n"


def message(number):
    headers = {
        "number": number,
        "text": "é" * (number % 7),
        "yes": number % 2 == 0,
        "large": 1 << 40,
        "list": [1, "two", {"three": 3}],
        "table": {"inner": {"deep": number}},
    }
    properties = pika.BasicProperties(
        content_type="application/json", content_encoding="identity", headers=headers, delivery_mode=2 - number % 2,
        priority=number % 5, correlation_id=f"c-{number}", reply_to="answers", message_id=f"m-{number}",
        timestamp=1_700_000_000 + number, type="order", app_id="shop",
    )
    return properties, f"body {number} ".encode() * (number % 50)


def fill(url, queue):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.tx_select()
    for number in range(MESSAGES):
        properties, body = message(number)
        channel.basic_publish("", queue, body, properties)
        if number % 1_000 == 999:
            channel.tx_commit()
    connection.close()


def declare(url, queue):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(queue, durable=True)
    connection.close()


def depth(url, queue):
    """None while the broker is away."""
    try:
        connection = pika.BlockingConnection(pika.URLParameters(url))
    except pika.exceptions.AMQPError:
        return None
    count = connection.channel().queue_declare(queue, durable=True, passive=True).method.message_count
    connection.close()
    return count


def verify(url, queue):
    """Nothing is lost or changed; the order is kept apart from what a lost connection repeats."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    count = channel.queue_declare(queue, passive=True).method.message_count
    seen, repeated = [], 0
    known = set()
    for _, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=60):
        assert properties, f"{count} messages are missing"
        number = properties.headers["number"]
        expected, expected_body = message(number)
        assert (vars(properties), body) == (vars(expected), expected_body), (vars(properties), vars(expected))
        if number in known:
            repeated += 1
        else:
            known.add(number)
            seen.append(number)
        count -= 1
        if not count:
            break
    connection.close()
    assert len(seen) == MESSAGES, f"{MESSAGES - len(seen)} messages were lost"
    assert seen == list(range(MESSAGES)), "the order changed"
    assert repeated <= KILLS * PREFETCH, f"{repeated} messages were repeated"


def carry(api, source, target, name, queue):
    """Shovels the whole queue, and kills Malote twice in between."""
    declare(target, queue)
    value = {
        "src-protocol": "amqp091", "src-uri": source, "src-queue": queue, "src-prefetch-count": PREFETCH,
        "dest-protocol": "amqp091", "dest-uri": target, "dest-queue": queue, "ack-mode": "on-confirm",
        "reconnect-delay": 1,
    }
    path = f"/parameters/shovel/{VHOST}/{name}"
    status, said, _ = api.ask("PUT", path, {"value": value})
    assert status in (201, 204), (status, said)
    for number in range(1, KILLS + 1):
        part = number * MESSAGES // (KILLS + 3)
        eventually(lambda: (depth(target, queue) or 0) >= part, 120)
        kill_broker()
    eventually(lambda: depth(source, queue) == 0 and (depth(target, queue) or 0) >= MESSAGES, 180)
    # What the shovel has not acknowledged is not in the depth; it is repeated if the shovel is deleted too early.
    time.sleep(1)
    status, said, _ = api.ask("DELETE", path)
    assert status == 204, (status, said)
    assert depth(source, queue) == 0, "messages are left"


@check
def a_shovel_carries_a_queue_to_malote_and_back(api, real, ours):
    fill(real, "orders")
    carry(api, real, ours, "out", "orders")
    verify(ours, "orders")
    fill(ours, "returns")
    carry(api, ours, real, "back", "returns")
    verify(real, "returns")


main(Api(sys.argv[1], VHOST), sys.argv[2], sys.argv[3])
