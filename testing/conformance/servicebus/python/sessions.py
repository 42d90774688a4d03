"""Sessions: by name, next available, state, locks, order, refusals."""

import datetime
import threading
import time

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from harness import body, client, main, queue, raises


def sessions(**spec):
    return queue(sessions="dynamic", **spec)


def send(bus, name, session, texts):
    with bus.get_queue_sender(name) as sender:
        sender.send_messages([ServiceBusMessage(text, session_id=session) for text in texts])


def receive(receiver, count):
    got = []
    while len(got) < count:
        more = receiver.receive_messages(max_message_count=count - len(got), max_wait_time=5)
        assert more, f"{len(got)} of {count} messages came"
        got += more
    return got


def accept_a_session_by_name():
    name = sessions()
    with client() as bus:
        send(bus, name, "a", [str(i) for i in range(10)])
        send(bus, name, "b", ["other"])
        with bus.get_queue_receiver(name, session_id="a") as receiver:
            assert receiver.session.session_id == "a" and receiver.session.locked_until_utc
            got = receive(receiver, 10)
            assert [int(body(m)) for m in got] == list(range(10))
            assert all(m.session_id == "a" for m in got)
            for message in got:
                receiver.complete_message(message)
            assert receiver.receive_messages(max_wait_time=1) == []


def the_next_session_has_waited_longest():
    name = sessions()
    with client() as bus:
        for session in ("x", "y", "z"):
            send(bus, name, session, [session])
        seen = []
        for _ in range(3):
            with bus.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as receiver:
                seen.append(receiver.session.session_id)
                (got,) = receive(receiver, 1)
                assert body(got).decode() == seen[-1]
                receiver.complete_message(got)
        assert seen == ["x", "y", "z"], seen


def accepting_without_a_session_times_out():
    name = sessions()
    with client() as bus:
        receiver = bus.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)
        raises(OperationTimeoutError, lambda: receiver.__enter__())
        receiver.close()


def a_ready_session_wakes_a_waiting_accept():
    name = sessions()
    with client() as bus:
        found = []

        def wait():
            with bus.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20) as receiver:
                found.append(receiver.session.session_id)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(1.5)
        send(bus, name, "late", ["x"])
        waiting.join(15)
        assert found == ["late"], found


def a_session_has_one_holder():
    name = sessions()
    with client() as bus:
        send(bus, name, "a", ["x"])
        with bus.get_queue_receiver(name, session_id="a"):
            other = bus.get_queue_receiver(name, session_id="a")
            raises(SessionCannotBeLockedError, lambda: other.__enter__())
            other.close()
            nobody = bus.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)
            raises(OperationTimeoutError, lambda: nobody.__enter__())
            nobody.close()
        with bus.get_queue_receiver(name, session_id="a") as receiver:
            assert body(receive(receiver, 1)[0]) == b"x"


def session_state_is_stored_and_cleared():
    name = sessions()
    with client() as bus:
        with bus.get_queue_receiver(name, session_id="s") as receiver:
            assert receiver.session.get_state() is None
            receiver.session.set_state(b"\x00state")
            assert receiver.session.get_state() == b"\x00state"
        with bus.get_queue_receiver(name, session_id="s") as receiver:
            assert receiver.session.get_state() == b"\x00state"
            receiver.session.set_state(None)
            assert receiver.session.get_state() is None


def a_session_lock_is_renewed_and_expires():
    name = sessions(lock_ms=2000)
    with client() as bus:
        send(bus, name, "s", ["x"])
        receiver = bus.get_queue_receiver(name, session_id="s")
        with receiver:
            (got,) = receive(receiver, 1)
            before = receiver.session.locked_until_utc
            time.sleep(0.5)
            assert receiver.session.renew_lock() > before
            time.sleep(3)
            # The client refuses because of its own clock; the server must refuse as well.
            receiver.session._locked_until_utc = before + datetime.timedelta(hours=1)
            raises(SessionLockLostError, lambda: receiver.session.renew_lock())
            raises(SessionLockLostError, lambda: receiver.session.get_state())
            raises(SessionLockLostError, lambda: receiver.complete_message(got))
        with bus.get_queue_receiver(name, session_id="s") as receiver:
            (got,) = receive(receiver, 1)
            assert got.delivery_count == 1, got.delivery_count
            receiver.complete_message(got)


def closing_returns_messages_in_order_uncounted():
    name = sessions()
    with client() as bus:
        send(bus, name, "s", ["0", "1", "2"])
        with bus.get_queue_receiver(name, session_id="s") as receiver:
            receive(receiver, 3)
        with bus.get_queue_receiver(name, session_id="s") as receiver:
            got = receive(receiver, 3)
            assert [body(m) for m in got] == [b"0", b"1", b"2"]
            assert all(m.delivery_count == 0 for m in got)
            receiver.abandon_message(got[0])
            (again,) = receive(receiver, 1)
            assert body(again) == b"0" and again.delivery_count == 1
            receiver.complete_message(again)
            receiver.complete_message(got[1])
            receiver.defer_message(got[2])
            (deferred,) = receiver.receive_deferred_messages(got[2].sequence_number)
            receiver.complete_message(deferred)
            assert receiver.receive_messages(max_wait_time=1) == []


def receive_and_delete_in_a_session():
    name = sessions()
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client() as bus:
        send(bus, name, "s", ["0", "1"])
        with bus.get_queue_receiver(name, session_id="s", receive_mode=mode) as receiver:
            assert [body(m) for m in receive(receiver, 2)] == [b"0", b"1"]
        with bus.get_queue_receiver(name, session_id="s") as receiver:
            assert receiver.receive_messages(max_wait_time=1) == []


def wrong_kinds_of_receivers_are_refused():
    plain, with_sessions = queue(), sessions()
    with client() as bus:
        error = raises(ServiceBusError, lambda: bus.get_queue_receiver(plain, session_id="a").__enter__())
        assert "does not require sessions" in str(error), error
        receiver = bus.get_queue_receiver(with_sessions)
        error = raises(ServiceBusError, lambda: receiver.receive_messages(max_wait_time=1))
        assert "requires sessions" in str(error), error
        with bus.get_queue_sender(with_sessions) as sender:
            error = raises(ServiceBusError, lambda: sender.send_messages(ServiceBusMessage("x")))
            assert "SessionId was not set" in str(error), error
            # The link still works.
            sender.send_messages(ServiceBusMessage("x", session_id="s"))
        with bus.get_queue_receiver(with_sessions, session_id="s") as receiver:
            assert len(receive(receiver, 1)) == 1


def many_sessions_are_handled_concurrently():
    name = sessions()
    count, each = 20, 5
    seen, lock = {}, threading.Lock()
    with client() as bus:
        with bus.get_queue_sender(name) as sender:
            for i in range(each):
                sender.send_messages([ServiceBusMessage(str(i), session_id=f"s{n}") for n in range(count)])

        def work():
            while True:
                try:
                    with bus.get_queue_receiver(
                        name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2
                    ) as receiver:
                        for message in receive(receiver, each):
                            with lock:
                                seen.setdefault(message.session_id, []).append(int(body(message)))
                            receiver.complete_message(message)
                except OperationTimeoutError:
                    return

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(seen) == count and all(order == list(range(each)) for order in seen.values()), seen


main(
    [
        accept_a_session_by_name,
        the_next_session_has_waited_longest,
        accepting_without_a_session_times_out,
        a_ready_session_wakes_a_waiting_accept,
        a_session_has_one_holder,
        session_state_is_stored_and_cleared,
        a_session_lock_is_renewed_and_expires,
        closing_returns_messages_in_order_uncounted,
        receive_and_delete_in_a_session,
        wrong_kinds_of_receivers_are_refused,
        many_sessions_are_handled_concurrently,
    ]
)
