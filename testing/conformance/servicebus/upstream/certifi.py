"""What clients trust: the certificate of the server under test, and nothing else."""

import os


def where():
    return os.environ["SSL_CERT_FILE"]


def contents():
    with open(where(), encoding="ascii") as file:
        return file.read()
