create table if not exists malote_inbox (
    consumer text not null,
    message_id text not null,
    done_at timestamptz not null default now(),
    primary key (consumer, message_id)
);
create index if not exists malote_inbox_done_at on malote_inbox (done_at);

create table if not exists malote_fence (
    consumer text not null,
    key text not null,
    epoch bigint not null,
    raised_at timestamptz not null default now(),
    primary key (consumer, key)
);

create table if not exists malote_outbox (
    id bigint generated always as identity primary key,
    key text collate "C" not null,
    target text not null,
    message_id text not null,
    headers json not null,
    body bytea not null,
    not_before timestamptz,
    since timestamptz not null default clock_timestamp(),
    error text,
    xid xid8 not null default pg_current_xact_id()
);
create index if not exists malote_outbox_key on malote_outbox (key, id) where not_before is null;
create index if not exists malote_outbox_not_before on malote_outbox (not_before) where not_before is not null;
