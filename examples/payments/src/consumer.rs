//! The payment consumer: all the code that a shop writes.
//!
//! It records an intent before it calls the provider, and the answer after that. Both have the idempotency key of the
//! message, which is the same on every attempt. A repeated delivery finds the answer, or calls again with the same key.
//! A message about the charge goes to a second queue, whose handler writes with an inbox.

use std::path::Path;
use std::time::Duration;

use malote::once::sqlite::Sqlite;
use malote::{Breaker, Failure, Malote, Meta, QueueSpec, Retry, State, Tx, Worker};
use serde::{Deserialize, Serialize};

use crate::provider::Provider;

pub const PAYMENTS: &str = "payments";
pub const RECEIPTS: &str = "receipts";
/// Attempts for a payment, and the delay between them.
const ATTEMPTS: u32 = 50;
const RETRY_DELAY: Duration = Duration::from_millis(50);

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

/// Charges a card. No transaction can undo this effect.
async fn charge(
    payment: Payment,
    meta: Meta,
    shop: State<Sqlite>,
    provider: State<Provider>,
    malote: State<Malote>,
) -> Result<(), Failure> {
    let key = meta.idempotency_key();
    let receipt = match record_intent(&shop, key).await? {
        Some(receipt) => receipt, // charged before, and recorded
        None => {
            let charged = provider.charge(key, payment.cents).await;
            // The breaker counts failures of the provider, and stops the worker if there are many.
            let receipt = charged.map_err(|error| Failure::of_dependency("provider", error))?;
            record_receipt(&shop, key, receipt.number).await?;
            provider.crash_worker(key, receipt.calls, 13); // recorded, but not settled
            receipt.number
        }
    };
    // A repeated message has the same id, which the inbox of the second handler recognizes.
    let Payment { customer, cents } = payment;
    malote.send(RECEIPTS, &Charged { customer, cents, receipt }).id(key).await?;
    Ok(())
}

/// Records that this key is about to be charged. Returns the receipt if it was charged before.
async fn record_intent(shop: &Sqlite, key: &str) -> Result<Option<i64>, malote::Error> {
    let key = key.to_owned();
    shop.run(move |db| {
        db.execute("insert or ignore into intents (key) values (?1)", [&key])?;
        db.query_row("select receipt from intents where key = ?1", [key], |row| row.get(0))
    })
    .await
}

/// Records the answer of the provider.
async fn record_receipt(shop: &Sqlite, key: &str, receipt: i64) -> Result<(), malote::Error> {
    let key = key.to_owned();
    let write = "update intents set receipt = ?2 where key = ?1";
    shop.run(move |db| db.execute(write, (key, receipt)).map(drop)).await
}

/// Books a charge. The statement does not detect repeated messages; the inbox of the transaction does.
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
    Ok(Sqlite::with_connection(db)?)
}

const TABLES: &str = "
create table if not exists intents (key text primary key, receipt integer);
create table if not exists bookings (customer text, cents integer, receipt integer);
";

/// The number of bookings and their sum.
pub async fn booked(shop: &Sqlite) -> Result<(u32, i64), malote::Error> {
    let sum = "select count(*), coalesce(sum(cents), 0) from bookings";
    shop.run(move |db| db.query_row(sum, [], |row| Ok((row.get(0)?, row.get(1)?)))).await
}

/// Creates the queues, if the broker supports it.
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
    let retry = if delay { Retry::fixed(RETRY_DELAY, ATTEMPTS) } else { Retry::at_once(ATTEMPTS) };
    let worker = Worker::new(malote, PAYMENTS).handle(charge).slots(4).retry(retry);
    let worker = worker.breaker(Breaker::of("provider"));
    worker.state(shop).state(provider).state(malote.clone())
}

/// The worker that books.
pub fn booking(malote: &Malote, shop: Sqlite) -> Worker {
    let delay = malote.broker().capabilities().delay;
    let retry = if delay { Retry::fixed(RETRY_DELAY, ATTEMPTS) } else { Retry::at_once(ATTEMPTS) };
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

/// The four usual failures of such a consumer, each in milliseconds.
#[cfg(test)]
mod tests {
    use super::*;
    use malote::testing::TestBroker;

    struct Fixture {
        broker: TestBroker,
        shop: Sqlite,
        provider: Provider,
        _directory: tempfile::TempDir,
    }

    impl Fixture {
        /// A broker with one payment.
        async fn new() -> Self {
            let broker = TestBroker::new().unwrap();
            declare(broker.malote()).await.unwrap();
            let payment = Payment { customer: "ana".to_owned(), cents: 500 };
            broker.malote().send(PAYMENTS, &payment).id("payment-0").await.unwrap();
            let directory = tempfile::tempdir().unwrap();
            let shop = database(&directory.path().join("shop.db")).unwrap();
            let provider = Provider::at(&directory.path().join("provider.db")).unwrap();
            Self { broker, shop, provider, _directory: directory }
        }

        async fn drain(&self) {
            let malote = self.broker.malote();
            let charging = charging(malote, self.shop.clone(), self.provider.clone());
            self.broker.drain(charging).await.unwrap();
            self.broker.drain(booking(malote, self.shop.clone())).await.unwrap();
        }

        /// Lets the retry delay pass, and drains the queues.
        async fn retry(&self) {
            self.broker.advance(Duration::from_secs(1));
            self.drain().await;
        }

        /// Checks that there is one charge and one booking after this number of calls.
        async fn assert_once(&self, calls: u32) {
            assert_eq!(self.provider.totals().await.unwrap(), (1, 500, calls));
            assert_eq!(booked(&self.shop).await.unwrap(), (1, 500));
        }
    }

    #[tokio::test]
    async fn a_duplicate_delivery_is_one_charge() {
        let fixture = Fixture::new().await;
        fixture.broker.repeat_messages(2);
        fixture.drain().await;
        fixture.assert_once(1).await;
    }

    #[tokio::test]
    async fn while_the_database_is_down_nothing_is_charged() {
        let fixture = Fixture::new().await;
        fixture
            .shop
            .run(|db| db.execute_batch("alter table intents rename to away"))
            .await
            .unwrap();
        fixture.drain().await;
        assert_eq!(fixture.provider.totals().await.unwrap(), (0, 0, 0));
        fixture
            .shop
            .run(|db| db.execute_batch("alter table away rename to intents"))
            .await
            .unwrap();
        fixture.retry().await;
        fixture.assert_once(1).await;
    }

    #[tokio::test]
    async fn while_the_provider_is_down_the_payment_waits() {
        let fixture = Fixture::new().await;
        fixture.provider.set_down(true);
        fixture.drain().await;
        assert_eq!(fixture.provider.totals().await.unwrap(), (0, 0, 0));
        fixture.provider.set_down(false);
        fixture.retry().await;
        fixture.assert_once(1).await;
    }

    /// The payment was charged, but the receipt could not be recorded.
    #[tokio::test]
    async fn a_redelivery_between_charge_and_record_is_one_charge() {
        let fixture = Fixture::new().await;
        fixture.shop
            .run(|db| {
                db.execute_batch(
                    "create trigger full before update on intents begin select raise(abort, 'disk full'); end",
                )
            })
            .await
            .unwrap();
        fixture.drain().await;
        assert_eq!(fixture.provider.totals().await.unwrap(), (1, 500, 1));
        fixture.shop.run(|db| db.execute_batch("drop trigger full")).await.unwrap();
        fixture.retry().await;
        fixture.assert_once(2).await;
    }
}
