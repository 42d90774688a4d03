"""The examples of README.md, as they are printed there, except for the ports."""

import contextlib
import io
import os
import re
import subprocess
import time

README = os.path.join(os.path.dirname(__file__), "..", "..", "..", "README.md")
CHECKS = []
# The longest that a correct broker may take on a slow machine, in seconds.
PATIENCE = 60


def blocks(language):
    with open(README, encoding="utf-8") as file:
        return re.findall(rf"^```{language}\n(.*?)^```$", file.read(), re.DOTALL | re.MULTILINE)


def with_ports(text, broker):
    for printed, actual in [
        ("http://127.0.0.1:9324", broker.sqs_url),
        ("http://127.0.0.1:8080", broker.http_url),
        ("sb://127.0.0.1;", f"sb://{broker.amqp};"),
        ("guest@127.0.0.1/", f"guest@{broker.amqp}/"),
    ]:
        text = text.replace(printed, actual)
    return text


def check(function):
    CHECKS.append(function)
    return function


@check
def the_python_programs_of_the_readme_run(broker):
    programs = blocks("python")
    assert len(programs) == 3, programs
    output = io.StringIO()
    for program in programs:
        with contextlib.redirect_stdout(output):
            exec(with_ports(program, broker), {})  # in order: the second one receives what the first one sent
    assert "ana buys" in output.getvalue(), output.getvalue()
    # The program for RabbitMQ does not wait for a confirm.
    end = time.monotonic() + PATIENCE
    while broker.api("GET", "/queues/tasks")["counts"]["ready"] != 1:
        assert time.monotonic() < end, "the message did not arrive"
        time.sleep(0.05)


@check
def the_curl_commands_of_the_readme_run(broker):
    (commands,) = [block for block in blocks("text") if block.startswith("curl")]
    # Not every curl knows `--json`.
    commands = with_ports(commands, broker).replace("--json", "-H 'content-type: application/json' -d")
    answers = [
        subprocess.run(command.replace("curl", "curl -sS --fail-with-body", 1), shell=True, check=True, capture_output=True, text=True)
        for command in commands.splitlines()
    ]
    assert len(answers) == 2 and "Hello" in answers[1].stdout, answers
