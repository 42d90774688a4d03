"""Runs all checks against a new broker: `python main.py PATH-OF-THE-BINARY`."""

import sys

import dead_letters
import fifo
import harness
import messages
import metrics
import queues
import signatures

if __name__ == "__main__":
    broker = harness.Broker(sys.argv[1])
    modules = [queues, messages, fifo, dead_letters, metrics, signatures]
    only = sys.argv[2:]
    checks = [check for module in modules for check in module.CHECKS]
    checks = [check for check in checks if not only or check.__name__ in only or check.__module__ in only]
    good = harness.run(checks, broker)
    broker.stop()
    sys.exit(0 if good and checks else 1)
