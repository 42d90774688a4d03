//! All the code that a shop writes. `/before` sends the mail itself, and the customer waits for it. `/checkout` puts
//! the mail into a durable queue and answers.

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
/// The rate limit of the provider.
pub const MAILS_PER_SECOND: u32 = 50;

#[derive(Serialize, Deserialize)]
pub struct Mail {
    pub order: u64,
}

/// The shop: its broker, its mail provider and a counter of orders.
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

    /// The number of orders so far.
    pub fn orders(&self) -> u64 {
        self.orders.load(Ordering::SeqCst)
    }

    pub fn routes(&self) -> Router {
        let routes =
            Router::new().route("/before", post(before)).route("/checkout", post(checkout));
        routes.with_state(self.clone())
    }

    /// The worker that sends mails. It keeps the rate limit, and pauses while the provider is down.
    pub async fn mailer(&self) -> Result<Running, malote::Error> {
        Worker::new(&self.malote, MAILS)
            .handle(send_mail)
            .state(self.provider.clone())
            // A mail takes seconds. To reach the rate, many are sent at the same time.
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
    // The id identifies a repeated checkout.
    match shop.malote.send(MAILS, &Mail { order }).id(format!("order-{order}")).await {
        Ok(_) => StatusCode::ACCEPTED,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn send_mail(mail: Mail, provider: malote::State<Provider>) -> Result<(), Failure> {
    let sent = provider.send(mail.order).await;
    sent.map_err(|unavailable| Failure::of_dependency("mail", unavailable))
}
