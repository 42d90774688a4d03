//! Sagas in SQLite.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use malote_wire_native::saga::SagaState;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::database::{Doing, Row, SagaTable, Save, Table};
use crate::once::sqlite::{DATABASE, Sqlite, write};
use crate::{Error, Malote};

/// The table, made where it is missing. `state` is all that is known about a saga, as JSON, and the truth; the view shows
/// its steps.
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

/// Rows that a cleaner removes at once.
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

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Changes a row inside of a transaction, with the message that wakes it; whether it was as it was.
pub(crate) fn save(db: &Connection, save: Save) -> Result<bool, Error> {
    let wrong = |error: rusqlite::Error| Error::Database(error.to_string());
    let wake = save.wake.map(crate::Outgoing::row).transpose()?;
    let (version, changed_at) = (number(save.version), number(save.changed_at));
    let (status, deadline) = (save.status.word(), save.deadline.map(number));
    let (name, id, state) = (&save.name, &save.id, &save.state);
    let (begun, waits) = (save.begun, save.waits);
    let changed = match save.from {
        0 => db.prepare_cached(INSERT).and_then(|mut insert| {
            let row = params![name, id, version, status, deadline, changed_at, begun, waits, state];
            insert.execute(row)
        }),
        from => db.prepare_cached(UPDATE).and_then(|mut update| {
            let from = number(from);
            update.execute(params![
                name, id, version, status, deadline, changed_at, begun, waits, state, from
            ])
        }),
    };
    if changed.map_err(wrong)? == 0 {
        return Ok(false);
    }
    if let Some(wake) = wake {
        write(db, wake).map_err(wrong)?;
    }
    Ok(true)
}

fn read(id: &str, state: &str) -> Result<SagaState, Error> {
    SagaState::read(state.as_bytes())
        .map_err(|error| Error::Database(format!("the saga `{id}` cannot be read: {error}")))
}

impl Table for Sqlite {
    fn load(&self, name: &str, id: &str) -> Doing<'_, Option<Row>> {
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
            Ok(Some(Row { state: read(&id, &state)?, begun, waits }))
        })
    }

    fn save(&self, row: Save) -> Doing<'_, bool> {
        Box::pin(async move {
            let saved = self.run(move |db| {
                let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let saved = save(&tx, row);
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
    ) -> Doing<'_, ()> {
        Box::pin(async move { self.relay_until(&malote, stop).await })
    }

    fn database(&self) -> &'static str {
        DATABASE
    }
}

impl From<&Sqlite> for SagaTable {
    fn from(sqlite: &Sqlite) -> Self {
        Self(Arc::new(sqlite.clone()))
    }
}

/// Sagas that are kept here.
impl Sqlite {
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
        rows.map(|(id, state)| read(&id, &state).map(|state| (id, state))).collect()
    }

    /// Removes sagas that have been over for longer than `age`; tells how many. Until then their ids start nothing.
    pub async fn clean_sagas(&self, age: Duration) -> Result<usize, Error> {
        let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
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
