//! Sagas in PostgreSQL.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use malote_wire_native::saga::SagaState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::super::SLICE;
use super::{DATABASE, Postgres, TypedParam, database_error, write};
use crate::clock::signed;
use crate::saga::SagaDatabase;
use crate::saga::database::{DatabaseFuture, SagaRow, SagaStore, SagaUpdate, decode_state};
use crate::{Error, Malote};

/// The table of sagas, and a view of their steps. The column `state` has the complete state as JSON; the other columns
/// repeat parts of it for queries.
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

/// Updates a row in a transaction and writes its wake-up message. Returns false if the row did not have the expected
/// version.
pub(super) async fn save(client: &Client, update: SagaUpdate) -> Result<bool, Error> {
    let wake = update.wake.map(crate::OutboxMessage::row).transpose()?;
    let (version, from) = (signed(update.version), signed(update.from));
    let (status, changed_at) = (update.status.word(), update.changed_at as f64);
    let deadline = update.deadline.map(|deadline| deadline as f64);
    let mut values: Vec<TypedParam<'_>> = vec![
        (&update.name, Type::TEXT),
        (&update.id, Type::TEXT),
        (&version, Type::INT8),
        (&status, Type::TEXT),
        (&deadline, Type::FLOAT8),
        (&changed_at, Type::FLOAT8),
        (&update.begun, Type::BOOL),
        (&update.waits, Type::BOOL),
        (&update.state, Type::TEXT),
    ];
    let changed = match update.from {
        0 => client.execute_typed(INSERT, &values).await,
        _ => {
            values.push((&from, Type::INT8));
            client.execute_typed(UPDATE, &values).await
        }
    };
    if changed.map_err(|error| database_error(&error))? == 0 {
        return Ok(false);
    }
    if let Some(wake) = wake {
        write(client, wake).await?;
    }
    Ok(true)
}

impl Postgres {
    async fn rows(&self, sql: &str, values: &[TypedParam<'_>]) -> Result<Vec<Row>, Error> {
        let connection = self.pool.take().await?.0;
        let rows = connection
            .client()
            .query_typed(sql, values)
            .await
            .map_err(|error| database_error(&error))?;
        connection.release();
        Ok(rows)
    }

    /// The state of a saga. `None` if no worker has begun it, or it was removed.
    pub async fn saga(&self, saga: &str, id: &str) -> Result<Option<SagaState>, Error> {
        Ok(self.load(saga, id).await?.map(|row| row.state))
    }

    /// Up to `max` sagas with this name whose ids are greater than `after`, sorted by id.
    pub async fn sagas(
        &self,
        saga: &str,
        after: &str,
        max: usize,
    ) -> Result<Vec<(String, SagaState)>, Error> {
        let max = max.clamp(1, SLICE) as i64;
        let values: [TypedParam<'_>; 3] =
            [(&saga, Type::TEXT), (&after, Type::TEXT), (&max, Type::INT8)];
        let mut all = Vec::new();
        for row in self.rows(PAGE, &values).await? {
            let id: String = row.try_get(0).map_err(|error| database_error(&error))?;
            let state: String = row.try_get(1).map_err(|error| database_error(&error))?;
            let state = decode_state(&id, &state)?;
            all.push((id, state));
        }
        Ok(all)
    }

    /// Deletes sagas that ended longer than `age` ago, and returns their number. Their ids can be started again then.
    pub async fn clean_sagas(&self, age: Duration) -> Result<usize, Error> {
        let (age, slice) = (age.as_secs_f64(), SLICE as i64);
        let mut all = 0;
        loop {
            let connection = self.pool.take().await?.0;
            let values: [TypedParam<'_>; 2] = [(&age, Type::FLOAT8), (&slice, Type::INT8)];
            let removed = connection.client().execute_typed(OLD, &values).await;
            let removed = removed.map_err(|error| database_error(&error))? as usize;
            connection.release();
            all += removed;
            if removed < SLICE {
                return Ok(all);
            }
        }
    }
}

impl SagaStore for Postgres {
    fn load(&self, name: &str, id: &str) -> DatabaseFuture<'_, Option<SagaRow>> {
        let (name, id) = (name.to_owned(), id.to_owned());
        Box::pin(async move {
            let values: [TypedParam<'_>; 2] = [(&name, Type::TEXT), (&id, Type::TEXT)];
            let rows = self.rows(ONE, &values).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let state: String = row.try_get(0).map_err(|error| database_error(&error))?;
            let begun = row.try_get(1).map_err(|error| database_error(&error))?;
            let waits = row.try_get(2).map_err(|error| database_error(&error))?;
            Ok(Some(SagaRow { state: decode_state(&id, &state)?, begun, waits }))
        })
    }

    fn save(&self, update: SagaUpdate) -> DatabaseFuture<'_, bool> {
        Box::pin(async move {
            // After an error the connection is dropped and closed, and the server rolls back.
            let connection = self.pool.take().await?.0;
            let client = connection.client();
            let begin = "begin isolation level read committed";
            client.batch_execute(begin).await.map_err(|error| database_error(&error))?;
            let saved = save(client, update).await?;
            let end = if saved { "commit" } else { "rollback" };
            client.batch_execute(end).await.map_err(|error| database_error(&error))?;
            connection.release();
            Ok(saved)
        })
    }

    fn relay(
        &self,
        malote: Malote,
        stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> DatabaseFuture<'_, ()> {
        Box::pin(async move { self.relay_until(&malote, stop).await })
    }

    fn database(&self) -> &'static str {
        DATABASE
    }
}

impl From<&Postgres> for SagaDatabase {
    fn from(postgres: &Postgres) -> Self {
        Self(Arc::new(postgres.clone()))
    }
}
