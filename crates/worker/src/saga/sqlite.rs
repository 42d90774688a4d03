//! Sagas in SQLite.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use malote_wire_native::saga::SagaState;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::database::{DatabaseFuture, SagaDatabase, SagaRow, SagaStore, SagaUpdate, decode_state};
use crate::clock::{millis, signed};
use crate::once::sqlite::{DATABASE, Sqlite, write};
use crate::{Error, Malote};

/// The table of sagas, created if it does not exist. The column `state` has the complete state as JSON; the other
/// columns repeat parts of it for queries. The view shows the steps.
pub const TABLES: &str = "
create table if not exists malote_saga (
    name text not null, id text not null, version integer not null, status text not null,
    deadline integer, changed_at integer not null, begun integer not null, waits integer not null,
    state text not null, primary key (name, id)) without rowid;
create index if not exists malote_saga_over on malote_saga (changed_at) where status in ('done', 'compensated');
create view if not exists malote_saga_step as
    select saga.name, saga.id, one.key as n, one.value ->> 'name' as step, one.value ->> 'status' as status,
           one.value ->> 'attempts' as attempts, one.value ->> 'error' as error, one.value ->> 'at' as at
    from malote_saga as saga, json_each(saga.state, '$.steps') as one;
";

/// Rows to read or delete in one statement.
const SLICE: usize = 1000;

const INSERT: &str = "insert into malote_saga
    (name, id, version, status, deadline, changed_at, begun, waits, state)
    values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) on conflict do nothing";
const UPDATE: &str =
    "update malote_saga set version = ?3, status = ?4, deadline = ?5, changed_at = ?6,
    begun = ?7, waits = ?8, state = ?9 where name = ?1 and id = ?2 and version = ?10";
const OLD: &str = "delete from malote_saga where (name, id) in (
    select name, id from malote_saga
    where status in ('done', 'compensated') and changed_at < unixepoch('subsec') * 1000 - ?1 limit ?2)";

/// Updates a row in a transaction and writes its wake-up message. Returns false if the row did not have the expected
/// version.
pub(crate) fn save(db: &Connection, update: SagaUpdate) -> Result<bool, Error> {
    let database_error = |error: rusqlite::Error| Error::Database(error.to_string());
    let wake = update.wake.map(crate::OutboxMessage::row).transpose()?;
    let (version, changed_at) = (signed(update.version), signed(update.changed_at));
    let (status, deadline) = (update.status.word(), update.deadline.map(signed));
    let (name, id, state) = (&update.name, &update.id, &update.state);
    let (begun, waits) = (update.begun, update.waits);
    let changed = match update.from {
        0 => db.prepare_cached(INSERT).and_then(|mut insert| {
            let row = params![name, id, version, status, deadline, changed_at, begun, waits, state];
            insert.execute(row)
        }),
        from => db.prepare_cached(UPDATE).and_then(|mut statement| {
            let from = signed(from);
            statement.execute(params![
                name, id, version, status, deadline, changed_at, begun, waits, state, from
            ])
        }),
    };
    if changed.map_err(database_error)? == 0 {
        return Ok(false);
    }
    if let Some(wake) = wake {
        write(db, wake).map_err(database_error)?;
    }
    Ok(true)
}

impl SagaStore for Sqlite {
    fn load(&self, name: &str, id: &str) -> DatabaseFuture<'_, Option<SagaRow>> {
        let (name, id) = (name.to_owned(), id.to_owned());
        Box::pin(async move {
            let key = (name, id.clone());
            let row = self.run(move |db| {
                let one = "select state, begun, waits from malote_saga where name = ?1 and id = ?2";
                let row = db.prepare_cached(one)?.query_row(params![key.0, key.1], |row| {
                    Ok((row.get::<_, String>(0)?, row.get(1)?, row.get(2)?))
                });
                row.optional()
            });
            let Some((state, begun, waits)) = row.await? else { return Ok(None) };
            Ok(Some(SagaRow { state: decode_state(&id, &state)?, begun, waits }))
        })
    }

    fn save(&self, update: SagaUpdate) -> DatabaseFuture<'_, bool> {
        Box::pin(async move {
            let saved = self.run(move |db| {
                let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let saved = save(&tx, update);
                if matches!(saved, Ok(true)) {
                    tx.commit()?;
                }
                Ok(saved)
            });
            saved.await?
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

impl From<&Sqlite> for SagaDatabase {
    fn from(sqlite: &Sqlite) -> Self {
        Self(Arc::new(sqlite.clone()))
    }
}

/// Sagas in this database.
impl Sqlite {
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
        let (saga, after) = (saga.to_owned(), after.to_owned());
        let max = i64::try_from(max.clamp(1, SLICE)).unwrap_or(i64::MAX);
        let rows = self.run(move |db| {
            let page = "select id, state from malote_saga where name = ?1 and id > ?2
                        order by id limit ?3";
            let mut page = db.prepare_cached(page)?;
            let rows = page.query_map(params![saga, after, max], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        });
        let rows = rows.await?.into_iter();
        rows.map(|(id, state)| decode_state(&id, &state).map(|state| (id, state))).collect()
    }

    /// Deletes sagas that ended longer than `age` ago, and returns their number. Their ids can be started again then.
    pub async fn clean_sagas(&self, age: Duration) -> Result<usize, Error> {
        let age_ms = signed(millis(age));
        let mut all = 0;
        loop {
            let slice = move |db: &mut Connection| db.execute(OLD, params![age_ms, SLICE as i64]);
            let removed = self.run(slice).await?;
            all += removed;
            if removed < SLICE {
                return Ok(all);
            }
        }
    }
}
