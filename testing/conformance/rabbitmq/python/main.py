"""RabbitMQ's behaviour as pika sees it. Usage: main.py URL [CHECK ...]"""

import harness
import wire  # noqa: F401
import connections  # noqa: F401
import topology  # noqa: F401
import routing  # noqa: F401
import publishing  # noqa: F401
import consuming  # noqa: F401
import limits  # noqa: F401
import patterns  # noqa: F401

harness.main()
