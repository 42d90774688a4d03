create schema if not exists malote;

create table malote.version (one boolean primary key default true check (one), version integer not null);
insert into malote.version (version) values (1);

-- The dead letters of a queue are stored under its negated id.
create table malote.queues (
    id integer generated always as identity primary key,
    name text not null unique,
    spec jsonb not null
);

-- The processes that hold leases. A row is deleted after its process is gone. A bound owner holds an advisory lock for as
-- long as its process runs.
create table malote.owners (
    id integer generated always as identity primary key,
    bound boolean not null,
    seen_at timestamptz not null default now(),
    gone_at timestamptz
);

create sequence malote.seqs;
create sequence malote.turns;
create sequence malote.holds;

-- turn: the position among ready sessions. due: when the first message is due. lease, owner, held_until: the hold. fetched:
-- the last message that was leased under the hold.
create table malote.sessions (
    num bigint generated always as identity primary key,
    queue integer not null,
    id bytea not null,
    turn bigint,
    due timestamptz,
    lease bigint,
    owner integer,
    held_until timestamptz,
    fetched bigint not null default 0,
    state bytea,
    unique (queue, id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
create index sessions_ready on malote.sessions (queue, turn) where turn is not null;
create index sessions_due on malote.sessions (due) where due is not null;
create index sessions_held on malote.sessions (held_until) where lease is not null;

-- meta: the message without its body. changes: changed properties.
create table malote.messages (
    seq bigint primary key default nextval('malote.seqs'),
    queue integer not null,
    session bigint,
    lane smallint not null default 0,
    failed integer not null default 0,
    receives integer not null default 0,
    fresh boolean not null default false,
    lease bigint,
    locked_until timestamptz,
    due timestamptz,
    expires timestamptz,
    enqueued_at timestamptz not null default now(),
    reason text,
    explanation text,
    meta bytea not null,
    changes bytea,
    body bytea not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
alter table malote.messages alter column body set storage external;
create index messages_ready on malote.messages (queue, lane, seq) where session is null and due is null;
create index messages_of_session on malote.messages (session, seq) where session is not null;
create index messages_due on malote.messages (due) where due is not null and session is null;
create index messages_expire on malote.messages (expires) where expires is not null;

create table malote.sent_before (
    queue integer not null,
    key bytea not null,
    until timestamptz not null,
    primary key (queue, key)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
create index sent_before_until on malote.sent_before (until);
