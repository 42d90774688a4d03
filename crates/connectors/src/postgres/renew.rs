//! Prolonging locks, and the orderly end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use malote_model::{LeaseToken, limits};
use tokio::sync::oneshot;
use tokio_postgres::types::Type;

use super::link::Sql;
use super::settle::Work;
use super::token::Token;
use super::{Shared, ms};
use crate::broker::{BrokerError, Settle};

/// Leases given back by one call.
const BATCH_MAX: usize = 1024;

pub(super) const RENEW: Sql = Sql {
    text: "update malote.messages m set locked_until = now() + $3 * interval '1 ms'
        from unnest($1::int8[], $2::int8[]) as w (seq, lease)
        where m.seq = w.seq and m.lease is not distinct from w.lease and m.session is null and m.locked_until > now() returning m.seq",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY, Type::INT8],
};
/// Locked in one order, as everywhere.
pub(super) const RENEW_HOLDS: Sql = Sql {
    text: "with held as materialized (
            select s.num from unnest($1::int8[], $2::int8[]) as w (num, hold) join malote.sessions s
                on s.num = w.num and s.lease is not distinct from w.hold
            where s.held_until > now() order by s.queue, s.id for no key update of s)
        update malote.sessions s set held_until = now() + $3 * interval '1 ms'
        from held where s.num = held.num returning s.num",
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY, Type::INT8],
};

impl Shared {
    pub(super) async fn renew(
        &self,
        leases: &[LeaseToken],
        lock: Duration,
    ) -> Result<Vec<Result<(), BrokerError>>, BrokerError> {
        let lock = i64::try_from(ms(lock).min(limits::LOCK_MS_MAX)).unwrap_or(i64::MAX);
        let (mut plain, mut holds) = (Vec::new(), Vec::new());
        let read: Vec<Option<Token>> = leases.iter().map(|&lease| Token::read(lease)).collect();
        for token in read.iter().flatten() {
            match *token {
                Token::Plain { seq, lease } => plain.push((seq, lease)),
                Token::Hold { num, hold } => holds.push((num, hold)),
                Token::Held { .. } => {} // as long as its session
            }
        }
        plain.sort_unstable();
        let (plain, held) = tokio::join!(
            self.renew_some(&RENEW, &plain, lock),
            self.renew_some(&RENEW_HOLDS, &holds, lock),
        );
        let (plain, held) = (plain?, held?);
        let answer = |token: &Option<Token>| {
            let renewed = match token {
                Some(Token::Plain { seq, .. }) => plain.contains(seq),
                Some(Token::Hold { num, .. }) => held.contains(num),
                Some(Token::Held { seq, hold }) => {
                    self.hold(*hold).is_some_and(|hold| hold.has_out(*seq))
                }
                None => false,
            };
            if renewed {
                return Ok(());
            }
            if let Some(Token::Plain { seq, lease }) = *token {
                self.let_go(seq, lease);
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
        let (rows, proofs): (Vec<i64>, Vec<i64>) = all.iter().copied().unzip();
        let told = self.claims.rows(sql, &[&rows, &proofs, &lock]).await?;
        Ok(told.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
    }

    /// An orderly end; a second one does nothing.
    pub(super) async fn end(&self) -> Result<(), BrokerError> {
        let given_back = self.give_back_all().await;
        given_back.and(self.leave().await)
    }

    /// What is out comes back uncounted.
    async fn give_back_all(&self) -> Result<(), BrokerError> {
        let plain: Vec<(i64, i64)> = self.plain.lock().drain().collect();
        for some in plain.chunks(BATCH_MAX) {
            let lease = |&(seq, lease): &(i64, i64)| Token::Plain { seq, lease }.write();
            self.settle(some.iter().map(lease).map(Settle::release).collect()).await?;
        }
        let holds: Vec<_> = self.holds.lock().values().cloned().collect();
        let mut letting_go = Vec::with_capacity(holds.len());
        for hold in holds {
            let (reply, gone) = oneshot::channel();
            let work = Work::LetGo { hold, reply: Some(reply) };
            self.settles.send(work).await.map_err(|_| BrokerError::Closed)?;
            letting_go.push(gone);
        }
        for gone in letting_go {
            gone.await.unwrap_or(Err(BrokerError::Closed))?;
        }
        Ok(())
    }

    /// Nobody need wonder whether we are gone: whoever keeps house next takes what could not be given back. Others are
    /// told what was.
    async fn leave(&self) -> Result<(), BrokerError> {
        self.anchored.store(false, Ordering::Release);
        let owner = self.owner.swap(0, Ordering::AcqRel);
        if owner == 0 {
            return Ok(());
        }
        // Not where transactions are open.
        let link = self.claims.link().await?;
        self.say(&link).await?;
        let gone = "gone_at = least(gone_at, now() - interval '1 min')";
        link.run(&format!("update malote.owners set {gone} where id = {owner}")).await?;
        Ok(())
    }
}
