//! Sagas in PostgreSQL.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use malote_wire_native::saga::SagaState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row as Found};

use super::super::SLICE;
use super::{DATABASE, Postgres, Value, write, wrong};
use crate::saga::SagaTable;
use crate::saga::database::{Doing, Row, Save, Table};
use crate::{Error, Malote};

/// The table, and a view of the steps. `state` is all that is known about a saga, and the truth.
pub const SAGA_TABLES: &str = include_str!("saga_tables.sql");

const INSERT: &str = "insert into malote_saga
        (name, id, version, status, deadline, changed_at, begun, waits, state)
    values ($1, $2, $3, $4, to_timestamp($5 / 1000), to_timestamp($6 / 1000), $7, $8, $9::json)
    on conflict do nothing";
const UPDATE: &str =
    "update malote_saga set version = $3, status = $4, deadline = to_timestamp($5 / 1000),
        changed_at = to_timestamp($6 / 1000), begun = $7, waits = $8, state = $9::json
    where name = $1 and id = $2 and version = $10";
const ONE: &str = "select state::text, begun, waits from malote_saga where name = $1 and id = $2";
const PAGE: &str =
    "select id, state::text from malote_saga where name = $1 and id > $2 order by id limit $3";
const OLD: &str = "delete from malote_saga where (name, id) in (
    select name, id from malote_saga where status in ('done', 'compensated')
        and changed_at < clock_timestamp() - make_interval(secs => $1) limit $2)";

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Changes a row inside of a transaction, with the message that wakes it; whether it was as it was.
pub(super) async fn save(client: &Client, save: Save) -> Result<bool, Error> {
    let wake = save.wake.map(crate::Outgoing::row).transpose()?;
    let (version, from) = (number(save.version), number(save.from));
    let (status, changed_at) = (save.status.word(), save.changed_at as f64);
    let deadline = save.deadline.map(|deadline| deadline as f64);
    let mut values: Vec<Value<'_>> = vec![
        (&save.name, Type::TEXT),
        (&save.id, Type::TEXT),
        (&version, Type::INT8),
        (&status, Type::TEXT),
        (&deadline, Type::FLOAT8),
        (&changed_at, Type::FLOAT8),
        (&save.begun, Type::BOOL),
        (&save.waits, Type::BOOL),
        (&save.state, Type::TEXT),
    ];
    let changed = match save.from {
        0 => client.execute_typed(INSERT, &values).await,
        _ => {
            values.push((&from, Type::INT8));
            client.execute_typed(UPDATE, &values).await
        }
    };
    if changed.map_err(|error| wrong(&error))? == 0 {
        return Ok(false);
    }
    if let Some(wake) = wake {
        write(client, wake).await?;
    }
    Ok(true)
}

fn read(id: &str, state: &str) -> Result<SagaState, Error> {
    SagaState::read(state.as_bytes())
        .map_err(|error| Error::Database(format!("the saga `{id}` cannot be read: {error}")))
}

impl Postgres {
    async fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Found>, Error> {
        let lent = self.pool.take().await?.0;
        let rows = lent.client().query_typed(sql, values).await.map_err(|error| wrong(&error))?;
        lent.give_back();
        Ok(rows)
    }

    /// Where a saga stands; none if no worker has begun it, or it was removed.
    pub async fn saga(&self, saga: &str, id: &str) -> Result<Option<SagaState>, Error> {
        Ok(self.load(saga, id).await?.map(|row| row.state))
    }

    /// Up to `max` sagas of a name whose ids come after this one, in the order of their ids.
    pub async fn sagas(
        &self,
        saga: &str,
        after: &str,
        max: usize,
    ) -> Result<Vec<(String, SagaState)>, Error> {
        let max = max.clamp(1, SLICE) as i64;
        let values: [Value<'_>; 3] =
            [(&saga, Type::TEXT), (&after, Type::TEXT), (&max, Type::INT8)];
        let mut all = Vec::new();
        for row in self.rows(PAGE, &values).await? {
            let id: String = row.try_get(0).map_err(|error| wrong(&error))?;
            let state: String = row.try_get(1).map_err(|error| wrong(&error))?;
            let state = read(&id, &state)?;
            all.push((id, state));
        }
        Ok(all)
    }

    /// Removes sagas that have been over for longer than `age`; tells how many. Until then their ids start nothing.
    pub async fn clean_sagas(&self, age: Duration) -> Result<usize, Error> {
        let (age, slice) = (age.as_secs_f64(), SLICE as i64);
        let mut all = 0;
        loop {
            let lent = self.pool.take().await?.0;
            let values: [Value<'_>; 2] = [(&age, Type::FLOAT8), (&slice, Type::INT8)];
            let removed = lent.client().execute_typed(OLD, &values).await;
            let removed = removed.map_err(|error| wrong(&error))? as usize;
            lent.give_back();
            all += removed;
            if removed < SLICE {
                return Ok(all);
            }
        }
    }
}

impl Table for Postgres {
    fn load(&self, name: &str, id: &str) -> Doing<'_, Option<Row>> {
        let (name, id) = (name.to_owned(), id.to_owned());
        Box::pin(async move {
            let values: [Value<'_>; 2] = [(&name, Type::TEXT), (&id, Type::TEXT)];
            let rows = self.rows(ONE, &values).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let state: String = row.try_get(0).map_err(|error| wrong(&error))?;
            let begun = row.try_get(1).map_err(|error| wrong(&error))?;
            let waits = row.try_get(2).map_err(|error| wrong(&error))?;
            Ok(Some(Row { state: read(&id, &state)?, begun, waits }))
        })
    }

    fn save(&self, row: Save) -> Doing<'_, bool> {
        Box::pin(async move {
            // Cut, if anything goes wrong in between: nothing of it happened.
            let lent = self.pool.take().await?.0;
            let client = lent.client();
            let begin = "begin isolation level read committed";
            client.batch_execute(begin).await.map_err(|error| wrong(&error))?;
            let saved = save(client, row).await?;
            let end = if saved { "commit" } else { "rollback" };
            client.batch_execute(end).await.map_err(|error| wrong(&error))?;
            lent.give_back();
            Ok(saved)
        })
    }

    fn relay(
        &self,
        malote: Malote,
        stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> Doing<'_, ()> {
        Box::pin(async move { self.relay_until(&malote, stop).await })
    }

    fn database(&self) -> &'static str {
        DATABASE
    }
}

impl From<&Postgres> for SagaTable {
    fn from(postgres: &Postgres) -> Self {
        Self(Arc::new(postgres.clone()))
    }
}
