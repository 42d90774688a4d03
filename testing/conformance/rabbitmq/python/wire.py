"""The protocol byte by byte, without a client library: what a client should never send, and how a broker answers it."""

import socket
import struct
import time

from harness import HOST, PASSWORD, PATIENCE, PORT, USER, VHOST, check, name, same

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PROTOCOL = b"AMQP\x00\x00\x09\x01"


def short(text):
    data = text.encode() if isinstance(text, str) else text
    return bytes([len(data)]) + data


def long(data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack(">I", len(data)) + data


def frame(kind, channel, payload=b""):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel, class_id, method_id, arguments=b""):
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def publish(queue):
    return method(1, 60, 40, b"\0\0" + short("") + short(queue) + b"\0")


def header(size, flags=0, rest=b"", class_id=60):
    return frame(HEADER, 1, struct.pack(">HHQH", class_id, 0, size, flags) + rest)


QOS = method(1, 60, 10, b"\0" * 7)
QOS_OK = (60, 11)
CLOSE = (10, 50)


class Wire:
    """A connection of which only the bytes are known."""

    def __init__(self, open_channel=True, frame_max=131072, heartbeat=0, failure_close=True, password=PASSWORD):
        self.socket = socket.create_connection((HOST, PORT), timeout=PATIENCE)
        self.send(PROTOCOL)
        self.started = self.expect(10, 10)
        capabilities = short("authentication_failure_close") + (b"t\x01" if failure_close else b"t\x00")
        properties = short("capabilities") + b"F" + long(capabilities)
        response = f"\0{USER}\0{password}"
        self.send(method(0, 10, 11, long(properties) + short("PLAIN") + long(response) + short("en_US")))
        if not open_channel:
            return
        self.tuned = struct.unpack(">HIH", self.expect(10, 30))
        tune = struct.pack(">HIH", 2047, frame_max, heartbeat)
        # Clients send both at once.
        self.send(method(0, 10, 31, tune) + method(0, 10, 40, short(VHOST) + short("") + b"\0"))
        self.expect(10, 41)
        self.send(method(1, 20, 10, short("")))
        self.expect(20, 11)

    def send(self, data):
        self.socket.sendall(data)

    def exactly(self, count):
        """None if the connection ends first."""
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data

    def frame(self):
        head = self.exactly(7)
        if head is None:
            return None
        kind, channel, size = struct.unpack(">BHI", head)
        payload = self.exactly(size + 1)
        return None if payload is None else (kind, channel, payload[:-1])

    def method(self):
        """Class, method and arguments of the next method; heartbeats are skipped."""
        while True:
            got = self.frame()
            if got is None:
                return None
            kind, _, payload = got
            if kind == METHOD:
                return struct.unpack(">HH", payload[:4]), payload[4:]

    def expect(self, class_id, method_id):
        got = self.method()
        assert got is not None, f"closed instead of {class_id}.{method_id}"
        same(got[0], (class_id, method_id))
        return got[1]

    def closed(self):
        """Code, text, class and method of the close that comes next; it is answered."""
        while True:
            got = self.method()
            if got is None:
                return None
            (class_id, method_id), arguments = got
            if (class_id, method_id) == CLOSE:
                (code,) = struct.unpack(">H", arguments[:2])
                length = arguments[2]
                text = arguments[3 : 3 + length].decode()
                self.send(method(0, 10, 51))
                return code, text, struct.unpack(">HH", arguments[3 + length :])

    def close(self):
        self.socket.close()


def refused(data, code, text=None, cause=None, **options):
    wire = Wire(**options)
    wire.send(data)
    closed = wire.closed()
    assert closed is not None, "the connection ended without connection.close"
    same(closed[0], code)
    if text is not None:
        same(closed[1], text)
    if cause is not None:
        same(closed[2], cause)
    wire.close()


@check
def another_protocol_is_answered_with_ours():
    for opening in (b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x00\x08\x00"):
        connection = socket.create_connection((HOST, PORT), timeout=PATIENCE)
        connection.sendall(opening)
        answer = b""
        while True:
            try:
                more = connection.recv(100)
            except ConnectionResetError:
                break
            if not more:
                break
            answer += more
        same(answer, PROTOCOL)


@check
def the_server_offers_what_it_should():
    wire = Wire()
    channel_max, frame_max, heartbeat = wire.tuned
    same((channel_max, frame_max), (2047, 131072))
    assert heartbeat > 0, heartbeat
    same(wire.started[:2], b"\x00\x09")
    assert b"PLAIN" in wire.started and b"AMQPLAIN" in wire.started and b"en_US" in wire.started
    wire.close()


@check
def amqplain_is_a_table_without_a_length():
    wire = socket.create_connection((HOST, PORT), timeout=PATIENCE)
    raw = Wire.__new__(Wire)
    raw.socket = wire
    raw.send(PROTOCOL)
    raw.expect(10, 10)
    response = short("LOGIN") + b"S" + long(USER) + short("PASSWORD") + b"S" + long(PASSWORD)
    raw.send(method(0, 10, 11, long("") + short("AMQPLAIN") + long(response) + short("en_US")))
    raw.expect(10, 30)
    raw.close()


@check
def a_login_without_the_capability_ends_in_silence():
    wire = Wire(open_channel=False, failure_close=False, password="wrong")
    same(wire.frame(), None)
    wire.close()


@check
def a_frame_without_its_end_is_refused():
    broken = method(1, 60, 70, b"\0\0\x01q\0")[:-1] + b"\xcd"
    text = "FRAME_ERROR - type 1, all octets = <<0,60,0,70,0,0,1,113,0>>: {invalid_frame_end_marker,205}"
    refused(broken, 501, text, (0, 0))


@check
def a_frame_larger_than_agreed_is_refused_at_once():
    text = "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,500000,131064}"
    refused(struct.pack(">BHI", BODY, 1, 500_000), 501, text)
    text = "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,9000,8184}"
    refused(struct.pack(">BHI", BODY, 1, 9_000), 501, text, frame_max=8192)


@check
def unknown_frames_are_refused():
    refused(frame(9, 1, b"abc"), 501, 'FRAME_ERROR - type 9, all octets = <<"abc">>: unknown_frame')
    refused(frame(HEARTBEAT, 1), 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>")


@check
def broken_arguments_are_refused():
    refused(method(1, 60, 40, b"\0\0\x05ab"), 501, "FRAME_ERROR - cannot decode <<0,0,5,97,98>>", (60, 40))


@check
def content_has_its_order():
    queue = name()
    text = "UNEXPECTED_FRAME - expected method frame, got non method frame instead"
    refused(header(0), 505, text)
    refused(frame(BODY, 1, b"hello"), 505, text)
    text = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
    refused(publish(queue) + QOS, 505, text, (60, 40))
    refused(publish(queue) + frame(BODY, 1, b"hello"), 505, text, (60, 40))
    text = "UNEXPECTED_FRAME - expected content header for class 60, got one for class 61 instead"
    refused(publish(queue) + header(0, class_id=61), 505, text, (60, 40))
    text = "UNEXPECTED_FRAME - expected content body, got non content body frame instead"
    refused(publish(queue) + header(5) + header(5), 505, text, (60, 40))
    refused(publish(queue) + header(5) + frame(BODY, 1, b"hellohello") + QOS, 505, text, (60, 40))


@check
def a_body_may_come_in_odd_pieces():
    wire = Wire()
    queue = name()
    wire.send(method(1, 50, 10, b"\0\0" + short(queue) + b"\x04" + long("")))
    wire.expect(50, 11)
    pieces = frame(BODY, 1) + frame(BODY, 1, b"he") + frame(BODY, 1) + frame(BODY, 1, b"llo")
    stream = publish(queue) + header(5) + pieces + method(1, 60, 70, b"\0\0" + short(queue) + b"\x01")
    # And the network may cut them anywhere.
    for index in range(0, len(stream), 7):
        wire.send(stream[index : index + 7])
        time.sleep(0.002)
    wire.expect(60, 71)
    wire.frame()
    same(wire.frame()[2], b"hello")
    wire.close()


@check
def a_payload_may_fill_frame_max():
    wire = Wire()
    wire.send(publish(name()) + header(131_072) + frame(BODY, 1, b"x" * 131_072) + QOS)
    wire.expect(*QOS_OK)
    wire.close()


@check
def methods_belong_to_open_channels():
    text = "CHANNEL_ERROR - expected 'channel.open'"
    refused(method(7, 60, 10, b"\0" * 7), 504, text, (60, 10))
    text = "CHANNEL_ERROR - second 'channel.open' seen"
    refused(method(1, 20, 10, short("")), 504, text, (20, 10))
    text = "CHANNEL_ERROR - unexpected method in connection state running"
    refused(method(0, 60, 10, b"\0" * 7), 504, text, (60, 10))


@check
def methods_of_servers_are_refused():
    refused(method(1, 60, 11), 503, "COMMAND_INVALID - unimplemented method", (60, 11))


@check
def what_is_not_implemented_is_refused():
    refused(method(1, 20, 20, b"\0"), 540, "NOT_IMPLEMENTED - active=false", (20, 20))
    size = struct.pack(">IHB", 100, 1, 0)
    refused(method(1, 60, 10, size), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (100)", (60, 10))
    immediate = method(1, 60, 40, b"\0\0" + short("") + short("q") + b"\x02") + header(0)
    refused(immediate, 540, "NOT_IMPLEMENTED - immediate=true", (60, 40))


@check
def old_clients_get_an_access_ticket():
    wire = Wire()
    wire.send(method(1, 30, 10, short("/data") + b"\x1f"))
    same(wire.expect(30, 11), b"\0\x01")
    wire.close()


@check
def flow_is_confirmed():
    wire = Wire()
    wire.send(method(1, 20, 20, b"\x01"))
    same(wire.expect(20, 21), b"\x01")
    wire.close()


@check
def a_channel_number_may_be_larger_than_their_count():
    wire = Wire()
    wire.send(method(3000, 20, 10, short("")))
    wire.expect(20, 11)
    wire.close()


@check
def the_server_sends_heartbeats():
    wire = Wire(heartbeat=2)
    wire.socket.settimeout(PATIENCE)
    same(wire.frame(), (HEARTBEAT, 0, b""))
    wire.close()


@check
def a_silent_client_is_disconnected():
    wire = Wire(heartbeat=1)
    begun = time.monotonic()
    while wire.frame() is not None:
        pass
    took = time.monotonic() - begun
    assert 1.5 < took < 30, took
    wire.close()


@check
def frame_max_may_not_be_raised():
    wire = Wire(open_channel=False)
    wire.expect(10, 30)
    tune = struct.pack(">HIH", 2047, 1 << 20, 0)
    wire.send(method(0, 10, 31, tune) + method(0, 10, 40, short(VHOST) + short("") + b"\0"))
    closed = wire.closed()
    assert closed is None or closed[0] == 530, closed
    wire.close()
