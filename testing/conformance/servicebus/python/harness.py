"""What the conformance programs share: the server's address, and new queues."""

import json
import os
import sys
import time
import urllib.request
import uuid
from urllib.parse import quote

from azure.servicebus import ServiceBusClient, ServiceBusMessage  # noqa: F401

AMQP = os.environ["MALOTE_AMQP_AT"]
HTTP = os.environ["MALOTE_HTTP_AT"]
CONNECTION_STRING = (
    f"Endpoint=sb://{AMQP};SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)


def client(**options):
    options.setdefault("retry_total", 0)
    return ServiceBusClient.from_connection_string(CONNECTION_STRING, **options)


def api(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{HTTP}/api/v1{path}", data=data, method=method)
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def queue(**spec):
    """Declares a queue with a new name."""
    name = f"q-{uuid.uuid4().hex[:12]}"
    spec.setdefault("lock_ms", 60_000)
    api("PUT", f"/queues/{quote(name, safe='')}", spec)
    return name


def body(message):
    return b"".join(message.body) if not isinstance(message.body, bytes) else message.body


def raises(kind, do):
    """Returns the error of `do`, which must be of this kind."""
    try:
        result = do()
    except kind as error:
        return error
    except Exception as error:  # noqa: BLE001
        raise AssertionError(f"{kind.__name__} expected, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{kind.__name__} expected, not {result!r}")


def main(cases):
    """Runs the cases and prints their results. Fails if a case failed."""
    wanted = sys.argv[1:]
    failed = 0
    for case in cases:
        if wanted and case.__name__ not in wanted:
            continue
        begun = time.monotonic()
        try:
            case()
            outcome = "ok"
        except Exception:  # noqa: BLE001
            import traceback

            traceback.print_exc()
            outcome, failed = "FAILED", failed + 1
        print(f"{outcome:7} {case.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
    sys.exit(1 if failed else 0)
