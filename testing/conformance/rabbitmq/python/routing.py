"""The kinds of exchanges, and what routes beside them."""

from harness import (
    VHOST,
    bodies,
    channel,
    channel_error,
    channel_error_with,
    check,
    depth,
    exchange,
    get,
    is_empty,
    name,
    publish,
    queue,
    same,
)


def bound(opened, x, *keys, arguments=None):
    q = queue(opened)
    for key in keys:
        opened.queue_bind(q, x, key, arguments=arguments)
    return q


@check
def direct_compares_the_whole_key():
    with channel(confirms=True) as opened:
        x = exchange(opened, "direct")
        both, one = bound(opened, x, "a", "b"), bound(opened, x, "a")
        for key in ("a", "b", "a.b", ""):
            publish(opened, key, key, exchange=x)
        same(bodies(opened, both, 2), ["a", "b"])
        same(bodies(opened, one, 1), ["a"])
        assert is_empty(opened, both) and is_empty(opened, one)


@check
def fanout_ignores_the_key():
    with channel(confirms=True) as opened:
        x = exchange(opened, "fanout")
        queues = [bound(opened, x, "k"), bound(opened, x, "")]
        publish(opened, "other", "x", exchange=x)
        same([bodies(opened, q, 1) for q in queues], [["x"], ["x"]])


TOPICS = {
    "#": ["", ".", "a", "a.b", "a.b.c", "a..b", "a*"],
    "*": ["a", "a*"],
    "": [""],
    "a.*": ["a.b"],
    "a.#": ["a", "a.b", "a.b.c", "a..b"],
    "#.b": ["a.b", "a..b"],
    "a.#.b": ["a.b", "a..b"],
    "a.*.b": ["a..b"],
    "*.*": [".", "a.b"],
    "*.#": [".", "a", "a.b", "a.b.c", "a..b", "a*"],
    "#.#": ["", ".", "a", "a.b", "a.b.c", "a..b", "a*"],
    "a*": ["a*"],
    "a.b": ["a.b"],
}


@check
def topic_matches_words():
    with channel(confirms=True) as opened:
        x = exchange(opened, "topic")
        queues = {pattern: bound(opened, x, pattern) for pattern in TOPICS}
        keys = TOPICS["#"]
        for key in keys:
            publish(opened, key, key, exchange=x)
        for pattern, q in queues.items():
            got = sorted(bodies(opened, q, depth(opened, q)))
            same((pattern, got), (pattern, sorted(TOPICS[pattern])))


@check
def headers_match_all_or_any():
    with channel(confirms=True) as opened:
        x = exchange(opened, "headers")
        both = bound(opened, x, "", arguments={"x-match": "all", "a": 1, "b": "x"})
        any_of = bound(opened, x, "", arguments={"x-match": "any", "a": 1, "b": "x"})
        usual = bound(opened, x, "", arguments={"a": 1, "b": "x"})
        present = bound(opened, x, "", arguments={"x-match": "all", "a": None})
        nothing = bound(opened, x, "", arguments={"x-match": "all"})
        for body, headers in {
            "both": {"a": 1, "b": "x", "c": True},
            "one": {"a": 1},
            "other": {"a": 2, "b": "y"},
            "kind": {"a": "1"},
            "none": None,
        }.items():
            publish(opened, "", body, exchange=x, headers=headers)
        same(bodies(opened, both, depth(opened, both)), ["both"])
        same(bodies(opened, any_of, depth(opened, any_of)), ["both", "one"])
        same(bodies(opened, usual, depth(opened, usual)), ["both"])
        same(bodies(opened, present, depth(opened, present)), ["both", "one", "other", "kind"])
        same(depth(opened, nothing), 5)


@check
def headers_beginning_with_x_count_only_when_asked():
    with channel(confirms=True) as opened:
        x = exchange(opened, "headers")
        usual = bound(opened, x, "", arguments={"x-match": "all", "x-a": 1, "b": 1})
        with_x = bound(opened, x, "", arguments={"x-match": "all-with-x", "x-a": 1, "b": 1})
        any_with_x = bound(opened, x, "", arguments={"x-match": "any-with-x", "x-a": 1})
        publish(opened, "", "b", exchange=x, headers={"b": 1})
        publish(opened, "", "both", exchange=x, headers={"b": 1, "x-a": 1})
        same(bodies(opened, usual, depth(opened, usual)), ["b", "both"])
        same(bodies(opened, with_x, depth(opened, with_x)), ["both"])
        same(bodies(opened, any_with_x, depth(opened, any_with_x)), ["both"])


@check
def an_unknown_match_is_refused():
    def bind(opened):
        opened.queue_bind(queue(opened), exchange(opened, "headers"), "", arguments={"x-match": "some"})

    text = "PRECONDITION_FAILED - Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x"
    # 3.x and 4.x print the value differently.
    channel_error(406, [text.format('<<"some">>'), text.format('"some"'), text.format("some")], bind)


@check
def one_copy_however_many_bindings():
    with channel(confirms=True) as opened:
        x = exchange(opened, "topic")
        q = bound(opened, x, "a.*", "#", "a.b")
        opened.queue_bind(q, x, "#")
        publish(opened, "a.b", "x", exchange=x)
        same(depth(opened, q), 1)
        opened.queue_unbind(q, x, "#")
        publish(opened, "c", "y", exchange=x)
        same(depth(opened, q), 1)


@check
def bindings_differ_by_their_arguments():
    with channel(confirms=True) as opened:
        x = exchange(opened, "direct")
        q = queue(opened)
        opened.queue_bind(q, x, "k", arguments={"n": 1})
        opened.queue_bind(q, x, "k", arguments={"n": 2})
        opened.queue_unbind(q, x, "k", arguments={"n": 1})
        publish(opened, "k", "x", exchange=x)
        same(depth(opened, q), 1)


@check
def exchanges_are_bound_to_exchanges():
    with channel(confirms=True) as opened:
        source, middle = exchange(opened, "topic"), exchange(opened, "fanout")
        q = bound(opened, middle, "")
        opened.exchange_bind(middle, source, "a.#")
        # In a circle too.
        opened.exchange_bind(source, middle, "")
        publish(opened, "a.b", "x", exchange=source)
        publish(opened, "b", "y", exchange=source)
        method, _, body = get(opened, q)
        same((method.exchange, method.routing_key, body), (source, "a.b", "x"))
        assert is_empty(opened, q)
        opened.exchange_unbind(middle, source, "a.#")
        opened.exchange_unbind(source, middle, "")


@check
def what_has_no_route_goes_to_the_alternate_exchange():
    with channel(confirms=True) as opened:
        last = exchange(opened, "fanout")
        arguments = {"alternate-exchange": last}
        middle = exchange(opened, "direct", arguments=arguments)
        first = exchange(opened, "direct", arguments={"alternate-exchange": middle})
        lost, found = bound(opened, last, ""), bound(opened, first, "k")
        publish(opened, "k", "found", exchange=first, mandatory=True)
        publish(opened, "other", "lost", exchange=first, mandatory=True)
        same(bodies(opened, found, 1), ["found"])
        method, _, body = get(opened, lost)
        same((method.exchange, method.routing_key, body), (first, "other", "lost"))
        assert is_empty(opened, lost)
        for x in (first, middle):
            opened.exchange_delete(x)


@check
def copies_go_where_headers_say():
    with channel(confirms=True) as opened:
        x = exchange(opened, "direct")
        own, copy, blind = bound(opened, x, "own"), bound(opened, x, "copy"), bound(opened, x, "blind")
        publish(opened, "own", "x", exchange=x, headers={"CC": ["copy"], "BCC": ["blind"]})
        for q in (own, copy, blind):
            method, properties, _ = get(opened, q)
            same(method.routing_key, "own")
            same(properties.headers, {"CC": ["copy"]})


@check
def headers_for_copies_are_lists():
    def send(opened):
        publish(opened, name(), "x", headers={"CC": "copy"})

    channel_error_with(406, "CC", send, confirms=True)


@check
def a_hash_spreads_keys_over_queues():
    with channel(confirms=True) as opened:
        for arguments in ({}, {"hash-header": "customer"}):
            x = exchange(opened, "x-consistent-hash", arguments=arguments)
            queues = [bound(opened, x, "10") for _ in range(3)]
            for repeat in range(2):
                for index in range(150):
                    key, headers = (str(index), None) if not arguments else ("", {"customer": str(index)})
                    publish(opened, key, str(index), exchange=x, headers=headers, mandatory=True)
            got = [bodies(opened, q, depth(opened, q)) for q in queues]
            same(sum(map(len, got)), 300)
            for one in got:
                # Equal keys go the same way, in order.
                assert len(one) > 0
                same(one[: len(one) // 2], one[len(one) // 2 :])


@check
def the_default_exchange_knows_every_queue():
    with channel(confirms=True) as opened:
        q = queue(opened)
        publish(opened, q, "x", mandatory=True)
        method, _, body = get(opened, q)
        same((method.exchange, method.routing_key, body), ("", q, "x"))


@check
def virtual_hosts_are_named_in_errors():
    q = name()
    channel_error(404, f"NOT_FOUND - no queue '{q}' in vhost '{VHOST}'", lambda opened: opened.basic_get(q))
