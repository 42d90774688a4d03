//! Connections to message brokers, behind the trait [`Broker`].
//!
//! | URL | module | broker |
//! |---|---|---|
//! | `embedded:DIR` | [`embedded`] | the engine in this process, with its data in DIR |
//! | `malote://[TOKEN@\|USER:PASSWORD@]HOST:PORT` | [`native`] | a Malote server, over its native connection |
//! | `malote+tls://…[?ca=FILE]` | [`native`] | the same over TLS, trusting the system's certificates and FILE |
//! | `amqp://[USER:PASSWORD@]HOST[:PORT][/VHOST]`, `amqps://…` | [`rabbitmq`] | RabbitMQ |
//! | `postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE` | [`postgres`] | a PostgreSQL database |
//! | `servicebus://CONNECTION-STRING` | [`servicebus`] | Azure Service Bus, or Malote over the same protocol |
//!
//! [`memory`] is a broker for tests. [`broker`] defines the trait and its types, [`depth`] the counts for scaling,
//! and [`capabilities`] what each broker can do. A worker that needs a missing capability is refused at start.
//! `tests/contract` runs the same tests on every connector.

pub mod broker;
pub mod capabilities;
pub mod depth;
#[cfg(feature = "tls")]
mod dial;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(any(feature = "native", feature = "postgres", feature = "rabbitmq", feature = "servicebus"))]
mod io_thread;
#[cfg(feature = "embedded")]
pub mod memory;
#[cfg(feature = "native")]
pub mod native;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
mod retry_delay;
#[cfg(feature = "servicebus")]
pub mod servicebus;
mod system;

use std::sync::Arc;

pub use broker::{
    Broker, BrokerError, BrokerFuture, Delivery, NewState, Sent, SessionHold, Settle, Source,
};
pub use capabilities::{Capabilities, Capability, RetryHold};
pub use depth::{Depth, SessionDepth};
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
#[cfg(feature = "embedded")]
pub use memory::Memory;
#[cfg(feature = "native")]
pub use native::NativeBroker;
pub use retry_delay::RetryDelay;

/// Reaches the broker that a URL names.
pub async fn connect(url: &str) -> Result<Arc<dyn Broker>, BrokerError> {
    match url.split_once(':') {
        #[cfg(feature = "embedded")]
        Some(("embedded", dir)) if !dir.is_empty() => Ok(Arc::new(Embedded::open(dir)?)),
        #[cfg(feature = "native")]
        Some(("malote" | "malote+tls", rest)) if rest.starts_with("//") => {
            Ok(Arc::new(NativeBroker::connect(url).await?))
        }
        #[cfg(feature = "rabbitmq")]
        Some(("amqp" | "amqps", rest)) if rest.starts_with("//") => {
            Ok(Arc::new(rabbitmq::RabbitMq::connect(url).await?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
            Ok(Arc::new(postgres::PostgresBroker::connect(url).await?))
        }
        #[cfg(feature = "servicebus")]
        Some(("servicebus", rest)) if rest.starts_with("//") => {
            Ok(Arc::new(servicebus::ServiceBus::connect(url).await?))
        }
        _ => {
            let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
            let text = match missing_feature(url) {
                Some(feature) => format!(
                    "this program was built without the connector for `{scheme}:`: add the feature `{feature}` of malote"
                ),
                None => format!(
                    "there is no connector for `{scheme}:`: use embedded:DIR, malote://HOST:PORT, malote+tls://HOST:PORT, amqp://HOST:PORT, postgres://HOST/DATABASE or servicebus://CONNECTION-STRING"
                ),
            };
            Err(BrokerError::Refused { code: "bad_url".into(), text })
        }
    }
}

/// The cargo feature with the connector of a URL, if this program was built without it.
fn missing_feature(url: &str) -> Option<&'static str> {
    let (feature, built) = match url.split_once(':')? {
        ("embedded", dir) if !dir.is_empty() => ("embedded", cfg!(feature = "embedded")),
        (_, rest) if !rest.starts_with("//") => return None,
        ("malote" | "malote+tls", _) => ("native", cfg!(feature = "native")),
        ("amqp" | "amqps", _) => ("rabbitmq", cfg!(feature = "rabbitmq")),
        ("postgres" | "postgresql", _) => ("postgres", cfg!(feature = "postgres")),
        ("servicebus", _) => ("servicebus", cfg!(feature = "servicebus")),
        _ => return None,
    };
    (!built).then_some(feature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_url_is_refused_with_a_list_of_valid_ones() {
        for bad in ["", "orders", "embedded:", "kafka://x", "malote:x"] {
            let Err(error) = connect(bad).await else { panic!("{bad} was accepted") };
            assert!(error.to_string().contains("use embedded:DIR"), "{error}");
        }
    }
}
