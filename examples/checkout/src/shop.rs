//! The shop: all that one would write. `before` sends the mail itself and lets the customer wait for it; `checkout` puts it
//! into a queue, durably, and answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use malote::{Breaker, Failure, Malote, QueueSpec, Retry, Running, Worker};
use serde::{Deserialize, Serialize};

use crate::provider::Provider;

pub const MAILS: &str = "mails";
/// What the provider lets one send in a second.
pub const MAILS_PER_SECOND: u32 = 50;

#[derive(Serialize, Deserialize)]
pub struct Mail {
    pub order: u64,
}

/// What the shop works with.
#[derive(Clone)]
pub struct Shop {
    pub malote: Malote,
    pub provider: Provider,
    orders: Arc<AtomicU64>,
}

impl Shop {
    pub async fn open(malote: Malote, provider: Provider) -> anyhow::Result<Self> {
        malote.declare(MAILS, QueueSpec::default()).await?;
        Ok(Self { malote, provider, orders: Arc::default() })
    }

    /// Orders so far.
    pub fn orders(&self) -> u64 {
        self.orders.load(Ordering::SeqCst)
    }

    pub fn routes(&self) -> Router {
        let routes =
            Router::new().route("/before", post(before)).route("/checkout", post(checkout));
        routes.with_state(self.clone())
    }

    /// The worker that sends mails: no faster than the provider allows, and not at all while it is down.
    pub async fn mailer(&self) -> Result<Running, malote::Error> {
        Worker::new(&self.malote, MAILS)
            .handle(send_mail)
            .state(self.provider.clone())
            // A mail takes seconds: as many at once as leave in that time.
            .slots(1000)
            .rate(MAILS_PER_SECOND, Duration::from_secs(1))
            .breaker(Breaker::of("mail").open_for(Duration::from_millis(500)))
            .retry(Retry::exponential(Duration::from_millis(200), 20))
            .start()
            .await
    }
}

async fn before(State(shop): State<Shop>) -> StatusCode {
    let order = shop.orders.fetch_add(1, Ordering::SeqCst);
    match shop.provider.send(order).await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::BAD_GATEWAY,
    }
}

async fn checkout(State(shop): State<Shop>) -> StatusCode {
    let order = shop.orders.fetch_add(1, Ordering::SeqCst);
    // With an id, so that a check-out that is repeated is known.
    match shop.malote.send(MAILS, &Mail { order }).id(format!("order-{order}")).await {
        Ok(_) => StatusCode::ACCEPTED,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn send_mail(mail: Mail, provider: malote::State<Provider>) -> Result<(), Failure> {
    let sent = provider.send(mail.order).await;
    sent.map_err(|unavailable| Failure::of_dependency("mail", unavailable))
}
