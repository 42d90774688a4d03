"""A client of the management API, and a harness that counts checks."""

import base64
import json
import sys
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def main(*arguments):
    """Runs all checks with these arguments and prints the counts."""
    passed = failed = 0
    for function in CHECKS:
        try:
            function(*arguments)
            passed += 1
        except Exception:
            failed += 1
            print(f"FAILED {function.__name__}", file=sys.stderr)
            traceback.print_exc()
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def eventually(test, seconds=60):
    """Calls `test` until it returns something."""
    end = time.monotonic() + seconds
    while True:
        found = test()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.5)


def quote(text):
    return urllib.parse.quote(text, safe="")


class Api:
    """`url` is http://user:password@host:port."""

    def __init__(self, url, vhost):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.user, self.password, self.vhost = parts.username, parts.password, vhost
        self.base = f"http://{parts.hostname}:{parts.port}/api"

    def ask(self, method, path, body=None, headers=()):
        """The status, the JSON and the headers of the answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method)
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in headers:
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text, found = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            status, text, found = error.code, error.read(), error.headers
        return status, json.loads(text) if text else None, found

    def get(self, path):
        status, value, _ = self.ask("GET", path)
        assert status == 200, (path, status, value)
        return value

    def of(self, kind, name=None, rest=""):
        """A path in the virtual host."""
        end = "" if name is None else "/" + quote(name)
        return f"/{kind}/{quote(self.vhost)}{end}{rest}"
