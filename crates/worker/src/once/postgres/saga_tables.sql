create table if not exists malote_saga (
    name text not null,
    id text collate "C" not null,
    version bigint not null,
    status text not null,
    deadline timestamptz,
    changed_at timestamptz not null,
    begun boolean not null,
    waits boolean not null,
    state json not null,
    primary key (name, id)
);
create index if not exists malote_saga_over on malote_saga (changed_at) where status in ('done', 'compensated');
create or replace view malote_saga_step as
    select saga.name, saga.id, one.n - 1 as n, one.step ->> 'name' as step, one.step ->> 'status' as status,
           (one.step ->> 'attempts')::int as attempts, one.step ->> 'error' as error,
           to_timestamp((one.step ->> 'at')::float8 / 1000) as at
    from malote_saga as saga, json_array_elements(saga.state -> 'steps') with ordinality as one (step, n);
