//! Renewing leases and holds, and closing the connector.

use std::sync::atomic::Ordering;
use std::time::Duration;

use malote_model::{LeaseToken, limits};
use tokio::sync::oneshot;
use tokio_postgres::types::Type;

use super::PgShared;
use super::connection::Sql;
use super::settle::SettleCall;
use super::token::PgToken;
use crate::broker::{BrokerError, Settle};
use crate::system::millis;

/// The most leases released by one call.
const RELEASE_BATCH_MAX: usize = 1024;

pub(super) const RENEW: Sql = Sql {
    text: "update malote.messages m set locked_until = now() + $3 * interval '1 ms'
        from unnest($1::int8[], $2::int8[]) as w (seq, lease)
        where m.seq = w.seq and m.lease is not distinct from w.lease and m.session is null and m.locked_until > now() returning m.seq",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY, Type::INT8],
};
/// Rows are locked in the same order as everywhere else.
pub(super) const RENEW_HOLDS: Sql = Sql {
    text: "with held as materialized (
            select s.num from unnest($1::int8[], $2::int8[]) as w (num, hold) join malote.sessions s
                on s.num = w.num and s.lease is not distinct from w.hold
            where s.held_until > now() order by s.queue, s.id for no key update of s)
        update malote.sessions s set held_until = now() + $3 * interval '1 ms'
        from held where s.num = held.num returning s.num",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY, Type::INT8],
};

impl PgShared {
    pub(super) async fn renew(
        &self,
        leases: &[LeaseToken],
        lock: Duration,
    ) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let lock = i64::try_from(millis(lock).min(limits::LOCK_MS_MAX)).unwrap_or(i64::MAX);
        let (mut plain, mut holds) = (Vec::new(), Vec::new());
        let read: Vec<Option<PgToken>> =
            leases.iter().map(|&lease| PgToken::decode(lease)).collect();
        for token in read.iter().flatten() {
            match *token {
                PgToken::Message { seq, lease } => plain.push((seq, lease)),
                PgToken::Session { num, hold } => holds.push((num, hold)),
                PgToken::SessionMessage { .. } => {} // its hold is renewed instead
            }
        }
        plain.sort_unstable();
        let (plain, held) = tokio::join!(
            self.renew_some(&RENEW, &plain, lock),
            self.renew_some(&RENEW_HOLDS, &holds, lock),
        );
        let (plain, held) = (plain?, held?);
        let answer = |token: &Option<PgToken>| {
            let renewed = match token {
                Some(PgToken::Message { seq, .. }) => plain.contains(seq),
                Some(PgToken::Session { num, .. }) => held.contains(num),
                Some(PgToken::SessionMessage { seq, hold }) => {
                    self.hold(*hold).is_some_and(|hold| hold.is_leased(*seq))
                }
                None => false,
            };
            if renewed {
                return Ok(());
            }
            if let Some(PgToken::Message { seq, lease }) = *token {
                self.forget_lease(seq, lease);
            }
            Err(BrokerError::LockLost)
        };
        Ok(read.iter().map(answer).collect())
    }

    async fn renew_some(
        &self,
        sql: &Sql,
        all: &[(i64, i64)],
        lock: i64,
    ) -> Result<std::collections::HashSet<i64>, BrokerError> {
        if all.is_empty() {
            return Ok(Default::default());
        }
        let (rows, tokens): (Vec<i64>, Vec<i64>) = all.iter().copied().unzip();
        let rows = self.claiming.query(sql, &[&rows, &tokens, &lock]).await?;
        Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
    }

    /// Releases everything and deregisters the owner. A second call does nothing.
    pub(super) async fn close(&self) -> Result<(), BrokerError> {
        let given_back = self.release_all().await;
        given_back.and(self.deregister_owner().await)
    }

    /// Releases all leases and holds, uncounted.
    async fn release_all(&self) -> Result<(), BrokerError> {
        let plain: Vec<(i64, i64)> = self.plain_leases.lock().drain().collect();
        for some in plain.chunks(RELEASE_BATCH_MAX) {
            let lease = |&(seq, lease): &(i64, i64)| PgToken::Message { seq, lease }.encode();
            self.settle(some.iter().map(lease).map(Settle::release).collect()).await?;
        }
        let holds: Vec<_> = self.holds.lock().values().cloned().collect();
        let mut releasing = Vec::with_capacity(holds.len());
        for hold in holds {
            let (reply, released) = oneshot::channel();
            let work = SettleCall::ReleaseHold { hold, reply: Some(reply) };
            self.settle_calls.send(work).await.map_err(|_| BrokerError::Closed)?;
            releasing.push(released);
        }
        for released in releasing {
            released.await.unwrap_or(Err(BrokerError::Closed))?;
        }
        Ok(())
    }

    /// Marks the owner as gone, so that maintenance of another process reclaims what could not be released. Sends
    /// pending notifications first.
    async fn deregister_owner(&self) -> Result<(), BrokerError> {
        self.owner_registered.store(false, Ordering::Release);
        let owner = self.owner.swap(0, Ordering::AcqRel);
        if owner == 0 {
            return Ok(());
        }
        // A connection without open transactions.
        let connection = self.claiming.connection().await?;
        self.send_notifications(&connection).await?;
        let gone = "gone_at = least(gone_at, now() - interval '1 min')";
        connection.execute(&format!("update malote.owners set {gone} where id = {owner}")).await?;
        Ok(())
    }
}
