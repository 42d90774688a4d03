-- Leased messages have their own index, so that a claim does not scan past them. Expired leases are found in it.
drop index malote.messages_ready;
create index messages_ready on malote.messages (queue, lane, seq)
    where session is null and due is null and lease is null;
create index messages_leased on malote.messages (queue, locked_until) where lease is not null;

-- Rows of a queue that does not exist. If a table was empty when it was analyzed, the server plans full scans of it, and keeps
-- these plans when there are millions of rows. With these rows, the tables are never empty, and every row is found by an
-- index.
insert into malote.sessions (queue, id, turn, lease, owner, held_until)
    select 0, int4send(n), case when n % 2 = 0 then n end, case when n % 2 = 1 then 0 end,
        case when n % 2 = 1 then 0 end, case when n % 2 = 1 then timestamptz 'infinity' end
    from generate_series(1, 400) n;
insert into malote.messages (queue, session, lease, locked_until, meta, body)
    select 0, case when n % 3 = 0 then s.num end, case when n % 3 = 1 then 0 end,
        case when n % 3 = 1 then timestamptz 'infinity' end, '', ''
    from generate_series(1, 1200) n join malote.sessions s on s.queue = 0 and s.id = int4send(1 + n / 3 % 400);
