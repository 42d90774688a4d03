//! The saga of an order: all the code that a shop writes.

use std::time::Duration;

use malote::{Failure, Malote, Retry, Saga, State, Step, Worker};

use crate::services::Services;

pub const ORDER: &str = "order";

/// The data that the steps pass on.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Order {
    pub item: String,
    pub cents: i64,
    /// The number of the charge at the bank.
    pub charge: Option<i64>,
    pub parcel: Option<i64>,
}

/// The key of a step is the same at every attempt. A service that is called twice with it has one effect.
async fn reserve(order: Order, step: Step, services: State<Services>) -> Result<Order, Failure> {
    services.reserve(step.key(), &order.item).await?;
    Ok(order)
}

/// There may be nothing to undo, if the call of `reserve` was lost.
async fn free(_order: Order, step: Step, services: State<Services>) -> Result<(), Failure> {
    services.free(step.undoes().unwrap_or_default()).await
}

async fn charge(mut order: Order, step: Step, services: State<Services>) -> Result<Order, Failure> {
    order.charge = Some(services.charge(step.key(), order.cents).await?);
    Ok(order)
}

async fn refund(_order: Order, step: Step, services: State<Services>) -> Result<(), Failure> {
    services.refund(step.undoes().unwrap_or_default()).await
}

/// The point of no return: a shipped parcel does not come back.
async fn ship(mut order: Order, step: Step, services: State<Services>) -> Result<Order, Failure> {
    order.parcel = Some(services.ship(step.key(), &order.item).await?);
    Ok(order)
}

async fn thank(order: Order, step: Step, services: State<Services>) -> Result<Order, Failure> {
    services.thank(step.key()).await?;
    Ok(order)
}

fn saga() -> Saga<Order> {
    Saga::named(ORDER)
        .retry(Retry::fixed(Duration::from_millis(20), 4))
        .deadline(Duration::from_secs(3600))
        .step("reserve", reserve)
        .compensate(free)
        .step("charge", charge)
        .compensate(refund)
        .step("ship", ship)
        .pivot()
        .step("thank", thank)
}

/// Works until every order is finished.
pub async fn work(url: &str, services: Services, count: usize) -> anyhow::Result<()> {
    let malote = Malote::connect(url).await?;
    let worker = Worker::of_saga(&malote, saga()).state(services).sessions(8).start().await?;
    while count_finished(&malote).await? < count {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    worker.stop();
    worker.ended().await?;
    Ok(malote.close().await?)
}

async fn count_finished(malote: &Malote) -> anyhow::Result<usize> {
    Ok(all(malote).await?.iter().filter(|(_, saga)| saga.is_over()).count())
}

/// Every saga, page by page.
pub async fn all(malote: &Malote) -> anyhow::Result<Vec<(String, malote::SagaState)>> {
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let page = malote.sagas(ORDER, at, 100).await?;
        all.extend(page.sagas);
        from = page.next;
    }
    Ok(all)
}
