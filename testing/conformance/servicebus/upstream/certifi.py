"""Clients trust only the certificate of the server under test."""

import os


def where():
    return os.environ["SSL_CERT_FILE"]


def contents():
    with open(where(), encoding="ascii") as file:
        return file.read()
