//! The payment consumer: this file is what you would write.
//!
//! An intent is written before the provider is asked, its answer after that. Both are keyed by the message's
//! idempotency key, which is the same on every attempt: whoever comes again finds the answer, or asks again with the
//! same key. What follows from a charge goes through a second queue, whose handler writes with an inbox.

use std::path::Path;
use std::time::Duration;

use malote::once::sqlite::Sqlite;
use malote::{Breaker, Failure, Malote, Meta, QueueSpec, Retry, State, Tx, Worker};
use serde::{Deserialize, Serialize};

use crate::provider::Provider;

pub const PAYMENTS: &str = "payments";
pub const RECEIPTS: &str = "receipts";
/// How often, and how fast, a payment is tried again.
const ATTEMPTS: u32 = 50;
const AGAIN: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Payment {
    pub customer: String,
    pub cents: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Charged {
    pub customer: String,
    pub cents: i64,
    pub receipt: i64,
}

/// Charges a card: an effect that no transaction of ours can take back.
async fn charge(
    payment: Payment,
    meta: Meta,
    shop: State<Sqlite>,
    provider: State<Provider>,
    malote: State<Malote>,
) -> Result<(), Failure> {
    let key = meta.idempotency_key();
    let receipt = match intend(&shop, key).await? {
        Some(receipt) => receipt, // charged before, and it was written down
        None => {
            let charged = provider.charge(key, payment.cents).await;
            // Its fault, not the message's: a breaker counts it, and stops taking payments if it goes on.
            let receipt = charged.map_err(|error| Failure::of_dependency("provider", error))?;
            answered(&shop, key, receipt.number).await?;
            provider.end_worker(key, receipt.calls, 13); // written down, and nobody was told
            receipt.number
        }
    };
    // A repeat has the same id: the inbox of whoever takes it knows it.
    let Payment { customer, cents } = payment;
    malote.send(RECEIPTS, &Charged { customer, cents, receipt }).id(key).await?;
    Ok(())
}

/// Writes down that this key is about to be charged. The receipt, if it was already.
async fn intend(shop: &Sqlite, key: &str) -> Result<Option<i64>, malote::Error> {
    let key = key.to_owned();
    shop.run(move |db| {
        db.execute("insert or ignore into intents (key) values (?1)", [&key])?;
        db.query_row("select receipt from intents where key = ?1", [key], |row| row.get(0))
    })
    .await
}

/// Writes down what the provider said.
async fn answered(shop: &Sqlite, key: &str, receipt: i64) -> Result<(), malote::Error> {
    let key = key.to_owned();
    let write = "update intents set receipt = ?2 where key = ?1";
    shop.run(move |db| db.execute(write, (key, receipt)).map(drop)).await
}

/// Books a charge. Nothing in these statements knows of repeats: the transaction's inbox does.
async fn book(charged: Charged, tx: Tx<Sqlite>) -> Result<(), Failure> {
    tx.run(move |db| {
        let Charged { customer, cents, receipt } = charged;
        db.execute(
            "insert into bookings (customer, cents, receipt) values (?1, ?2, ?3)",
            (customer, cents, receipt),
        )
    })
    .await?;
    Ok(())
}

/// Opens the shop's database.
pub fn database(path: &Path) -> anyhow::Result<Sqlite> {
    let db = rusqlite::Connection::open(path)?;
    db.execute_batch(TABLES)?;
    Ok(Sqlite::over(db)?)
}

const TABLES: &str = "
create table if not exists intents (key text primary key, receipt integer);
create table if not exists bookings (customer text, cents integer, receipt integer);
";

/// Bookings so far, and their sum.
pub async fn booked(shop: &Sqlite) -> Result<(u32, i64), malote::Error> {
    let sum = "select count(*), coalesce(sum(cents), 0) from bookings";
    shop.run(move |db| db.query_row(sum, [], |row| Ok((row.get(0)?, row.get(1)?)))).await
}

/// Makes the queues, where the broker lets us.
pub async fn declare(malote: &Malote) -> Result<(), malote::Error> {
    if malote.broker().capabilities().declare {
        for queue in [PAYMENTS, RECEIPTS] {
            malote.declare(queue, QueueSpec { failed_max: None, ..QueueSpec::default() }).await?;
        }
    }
    Ok(())
}

/// The worker that charges.
pub fn charging(malote: &Malote, shop: Sqlite, provider: Provider) -> Worker {
    let delay = malote.broker().capabilities().delay;
    let retry = if delay { Retry::fixed(AGAIN, ATTEMPTS) } else { Retry::at_once(ATTEMPTS) };
    let worker = Worker::new(malote, PAYMENTS).handle(charge).slots(4).retry(retry);
    let worker = worker.breaker(Breaker::of("provider"));
    worker.state(shop).state(provider).state(malote.clone())
}

/// The worker that books.
pub fn booking(malote: &Malote, shop: Sqlite) -> Worker {
    let delay = malote.broker().capabilities().delay;
    let retry = if delay { Retry::fixed(AGAIN, ATTEMPTS) } else { Retry::at_once(ATTEMPTS) };
    Worker::new(malote, RECEIPTS).handle(book).slots(4).state(shop).retry(retry)
}

/// Works on both queues until SIGTERM.
pub async fn work(url: &str, shop: Sqlite, provider: Provider) -> anyhow::Result<()> {
    let malote = Malote::connect(url).await?;
    let charging = charging(&malote, shop.clone(), provider).run_until_signal();
    let booking = booking(&malote, shop).run_until_signal();
    tokio::try_join!(charging, booking)?;
    Ok(malote.close().await?)
}

/// The four ways in which it could go wrong, each by itself and in milliseconds.
#[cfg(test)]
mod tests {
    use super::*;
    use malote::testing::TestBroker;

    struct Desk {
        broker: TestBroker,
        shop: Sqlite,
        provider: Provider,
        _home: tempfile::TempDir,
    }

    impl Desk {
        /// With one payment.
        async fn new() -> Self {
            let broker = TestBroker::new().unwrap();
            declare(broker.malote()).await.unwrap();
            let payment = Payment { customer: "ana".to_owned(), cents: 500 };
            broker.malote().send(PAYMENTS, &payment).id("payment-0").await.unwrap();
            let home = tempfile::tempdir().unwrap();
            let shop = database(&home.path().join("shop.db")).unwrap();
            let provider = Provider::at(&home.path().join("provider.db")).unwrap();
            Self { broker, shop, provider, _home: home }
        }

        async fn drain(&self) {
            let malote = self.broker.malote();
            let charging = charging(malote, self.shop.clone(), self.provider.clone());
            self.broker.drain(charging).await.unwrap();
            self.broker.drain(booking(malote, self.shop.clone())).await.unwrap();
        }

        /// Time goes by, and what waits is tried again.
        async fn later(&self) {
            self.broker.advance(Duration::from_secs(1));
            self.drain().await;
        }

        /// One charge, one booking, however many calls.
        async fn assert_once(&self, calls: u32) {
            assert_eq!(self.provider.totals().await.unwrap(), (1, 500, calls));
            assert_eq!(booked(&self.shop).await.unwrap(), (1, 500));
        }
    }

    #[tokio::test]
    async fn a_duplicate_delivery_is_one_charge() {
        let desk = Desk::new().await;
        desk.broker.repeat_messages(2);
        desk.drain().await;
        desk.assert_once(1).await;
    }

    #[tokio::test]
    async fn while_the_database_is_down_nothing_is_charged() {
        let desk = Desk::new().await;
        desk.shop.run(|db| db.execute_batch("alter table intents rename to away")).await.unwrap();
        desk.drain().await;
        assert_eq!(desk.provider.totals().await.unwrap(), (0, 0, 0));
        desk.shop.run(|db| db.execute_batch("alter table away rename to intents")).await.unwrap();
        desk.later().await;
        desk.assert_once(1).await;
    }

    #[tokio::test]
    async fn while_the_provider_is_down_the_payment_waits() {
        let desk = Desk::new().await;
        desk.provider.set_down(true);
        desk.drain().await;
        assert_eq!(desk.provider.totals().await.unwrap(), (0, 0, 0));
        desk.provider.set_down(false);
        desk.later().await;
        desk.assert_once(1).await;
    }

    /// Charged, and the worker died before it could write that down.
    #[tokio::test]
    async fn a_redelivery_after_half_of_the_work_is_one_charge() {
        let desk = Desk::new().await;
        desk.shop
            .run(|db| {
                db.execute_batch(
                    "create trigger full before update on intents begin select raise(abort, 'disk full'); end",
                )
            })
            .await
            .unwrap();
        desk.drain().await;
        assert_eq!(desk.provider.totals().await.unwrap(), (1, 500, 1));
        desk.shop.run(|db| db.execute_batch("drop trigger full")).await.unwrap();
        desk.later().await;
        desk.assert_once(2).await;
    }
}
