"""What the checks share: connections, names of their own, waiting, and the errors that a broker closes with."""

import contextlib
import os
import sys
import time
import traceback
import uuid
from urllib.parse import unquote, urlsplit

import pika
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

URL = sys.argv[1]
PARTS = urlsplit(URL)
HOST = PARTS.hostname
PORT = PARTS.port or 5672
USER = unquote(PARTS.username or "guest")
PASSWORD = unquote(PARTS.password or "guest")
VHOST = unquote(PARTS.path[1:]) or "/"
# The longest that a correct broker may take on a slow machine.
PATIENCE = 60

CHECKS = []


def check(case):
    """Registers a check."""
    CHECKS.append(case)
    return case


def name(kind="q"):
    return f"{kind}-{uuid.uuid4().hex[:12]}"


def parameters(**changes):
    values = {
        "host": HOST,
        "port": PORT,
        "virtual_host": VHOST,
        "credentials": pika.PlainCredentials(USER, PASSWORD),
        "blocked_connection_timeout": PATIENCE,
        "socket_timeout": PATIENCE,
        "stack_timeout": PATIENCE,
        "heartbeat": 600,
    }
    values.update(changes)
    return pika.ConnectionParameters(**values)


@contextlib.contextmanager
def connected(**changes):
    connection = pika.BlockingConnection(parameters(**changes))
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


@contextlib.contextmanager
def channel(confirms=False, **changes):
    with connected(**changes) as connection:
        opened = connection.channel()
        if confirms:
            opened.confirm_delivery()
        yield opened


def channel_error(code, texts, do, confirms=False):
    """`do` must end with its channel closed for this reason; the connection must live on."""
    with connected() as connection:
        opened = connection.channel()
        if confirms:
            opened.confirm_delivery()
        error = raises(ChannelClosedByBroker, lambda: do(opened))
        same((error.reply_code, one_of(error.reply_text, texts)), (code, error.reply_text))
        connection.channel().close()


def channel_error_with(code, part, do, confirms=False):
    """The same, where versions agree on a part of the text only."""
    with connected() as connection:
        opened = connection.channel()
        if confirms:
            opened.confirm_delivery()
        error = raises(ChannelClosedByBroker, lambda: do(opened))
        same(error.reply_code, code)
        assert part in error.reply_text, f"{part!r} is not in {error.reply_text!r}"


def connection_error(code, texts, do):
    """`do` must end with its connection closed for this reason."""
    with connected() as connection:
        opened = connection.channel()
        error = raises(ConnectionClosedByBroker, lambda: do(opened))
        same((error.reply_code, one_of(error.reply_text, texts)), (code, error.reply_text))


def one_of(text, texts):
    texts = [texts] if isinstance(texts, str) else texts
    return text if text in texts else f"one of {texts}"


def raises(kind, do):
    """The error that `do` ends with, which must be of this kind."""
    try:
        result = do()
    except kind as error:
        return error
    except Exception as error:  # noqa: BLE001
        raise AssertionError(f"{kind.__name__} expected, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{kind.__name__} expected, not {result!r}")


def same(left, right):
    assert left == right, f"{left!r} is not {right!r}"


def eventually(look):
    """The first value of `look` that is neither None nor False."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(0.02)
    raise AssertionError("nothing happened")


def queue(opened, arguments=None, **options):
    """Declares a queue with a name of its own, which ends with its connection unless something else is asked for."""
    options.setdefault("exclusive", True)
    return opened.queue_declare(name(), arguments=arguments or {}, **options).method.queue


def exchange(opened, kind, **options):
    options.setdefault("auto_delete", True)
    made = name("x")
    opened.exchange_declare(made, kind, **options)
    return made


def publish(opened, to, body, exchange="", mandatory=False, **properties):
    if isinstance(body, str):
        body = body.encode()
    opened.basic_publish(exchange, to, body, pika.BasicProperties(**properties), mandatory=mandatory)


def get(opened, queue, auto_ack=True):
    """The next message, as soon as there is one: how it came, its properties and its body."""

    def look():
        method, properties, body = opened.basic_get(queue, auto_ack=auto_ack)
        return None if method is None else (method, properties, body.decode())

    return eventually(look)


def bodies(opened, queue, count):
    return [get(opened, queue)[2] for _ in range(count)]


def is_empty(opened, queue):
    return opened.basic_get(queue, auto_ack=True)[0] is None


def depth(opened, queue):
    return opened.queue_declare(queue, passive=True).method.message_count


def exists(kind, target):
    """Asks on a channel of its own, because a negative answer closes it."""
    with connected() as connection:
        try:
            opened = connection.channel()
            if kind == "queue":
                opened.queue_declare(target, passive=True)
            else:
                opened.exchange_declare(target, passive=True)
            return True
        except ChannelClosedByBroker as error:
            same(error.reply_code, 404)
            return False


class Consumer:
    """Collects what a consumer gets."""

    def __init__(self, opened, queue, auto_ack=False, **options):
        self.channel = opened
        self.received = []
        self.tag = opened.basic_consume(queue, self._on_message, auto_ack=auto_ack, **options)

    def _on_message(self, _channel, method, properties, body):
        self.received.append((method, properties, body.decode()))

    def wait(self, count):
        """The first messages, as many as these."""
        end = time.monotonic() + PATIENCE
        while len(self.received) < count:
            assert time.monotonic() < end, f"{len(self.received)} of {count} messages came"
            self.channel.connection.process_data_events(time_limit=0.05)
        return self.received[:count]

    def bodies(self, count):
        return [body for _, _, body in self.wait(count)]

    def settled(self):
        """What there is after a moment in which more could have come."""
        self.channel.connection.process_data_events(time_limit=0.3)
        return [body for _, _, body in self.received]


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
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
