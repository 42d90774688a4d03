"""Messages sent with one SDK are received with the other, for each field of the mapping.

`python main.py PATH-OF-THE-BINARY`, with boto3, azure-servicebus and pika installed.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "sqs", "python"))

import harness  # noqa: E402

import fields  # noqa: E402
import locks  # noqa: E402
import dead_letters_across  # noqa: E402
import readme  # noqa: E402

if __name__ == "__main__":
    broker = harness.Broker(sys.argv[1], amqp=True)
    only = sys.argv[2:]
    checks = [check for module in (fields, locks, dead_letters_across, readme) for check in module.CHECKS]
    checks = [check for check in checks if not only or check.__name__ in only]
    good = harness.run(checks, broker)
    broker.stop()
    sys.exit(0 if good and checks else 1)
