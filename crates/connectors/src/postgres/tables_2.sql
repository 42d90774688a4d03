-- What is leased is in an index of its own: a claim does not walk past it, however much there is. Leases that ran out
-- are found there, by when.
drop index malote.messages_ready;
create index messages_ready on malote.messages (queue, lane, seq)
    where session is null and due is null and lease is null;
create index messages_leased on malote.messages (queue, locked_until) where lease is not null;

-- Rows of a queue that nobody has. Of a table that was empty when it was looked at, the server thinks that it still is:
-- it would plan to go through all of it for each row that it looks for, and keep to that when there are millions. With
-- these it is never empty, and every row is found by its index.
insert into malote.sessions (queue, id, turn, lease, owner, held_until)
    select 0, int4send(n), case when n % 2 = 0 then n end, case when n % 2 = 1 then 0 end,
        case when n % 2 = 1 then 0 end, case when n % 2 = 1 then timestamptz 'infinity' end
    from generate_series(1, 400) n;
insert into malote.messages (queue, session, lease, locked_until, meta, body)
    select 0, case when n % 3 = 0 then s.num end, case when n % 3 = 1 then 0 end,
        case when n % 3 = 1 then timestamptz 'infinity' end, '', ''
    from generate_series(1, 1200) n join malote.sessions s on s.queue = 0 and s.id = int4send(1 + n / 3 % 400);
