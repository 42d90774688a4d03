//! Brokers that a worker can reach, behind one small trait.
//!
//! | URL | module | is |
//! |---|---|---|
//! | `embedded:DIR` | [`embedded`] | the engine in this process, with its data in DIR |
//! | `malote://[USER:PASSWORD@]HOST:PORT` | [`native`] | a Malote server, over its native connection |
//! | `malote+tls://…[?ca=FILE]` | [`native`] | the same through TLS, trusting the system and FILE |
//! | `amqp://[USER:PASSWORD@]HOST[:PORT][/VHOST]`, `amqps://…` | [`rabbitmq`] | RabbitMQ |
//! | `postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE` | [`postgres`] | a PostgreSQL database |
//! | `servicebus://CONNECTION-STRING` | [`servicebus`] | Azure Service Bus, or Malote by that protocol |
//!
//! [`memory`] is a broker for tests. [`broker`] has the trait and its words, [`depth`] how much waits, [`capabilities`] what a broker can do.
//! What a broker cannot do is refused when a worker starts, never done weaker in silence. `tests/contract` holds every
//! connector to the same rules.

pub mod broker;
pub mod capabilities;
pub mod depth;
#[cfg(feature = "tls")]
mod dial;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "embedded")]
pub mod memory;
#[cfg(feature = "native")]
pub mod native;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "servicebus")]
pub mod servicebus;

use std::sync::Arc;

pub use broker::{Broker, BrokerError, Delivery, Doing, Held, NewState, Sent, Settle, Source};
pub use capabilities::{Capabilities, Capability, RetryHold};
pub use depth::{Depth, SessionDepth};
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
#[cfg(feature = "embedded")]
pub use memory::Memory;
#[cfg(feature = "native")]
pub use native::Native;

/// Reaches the broker that a URL names.
pub async fn connect(url: &str) -> Result<Arc<dyn Broker>, BrokerError> {
    match url.split_once(':') {
        #[cfg(feature = "embedded")]
        Some(("embedded", dir)) if !dir.is_empty() => Ok(Arc::new(Embedded::open(dir)?)),
        #[cfg(feature = "native")]
        Some(("malote" | "malote+tls", rest)) if rest.starts_with("//") => {
            Ok(Arc::new(Native::connect(url).await?))
        }
        #[cfg(feature = "rabbitmq")]
        Some(("amqp" | "amqps", rest)) if rest.starts_with("//") => {
            Ok(Arc::new(rabbitmq::RabbitMq::connect(url).await?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
            Ok(Arc::new(postgres::Postgres::connect(url).await?))
        }
        #[cfg(feature = "servicebus")]
        Some(("servicebus", rest)) if rest.starts_with("//") => {
            Ok(Arc::new(servicebus::ServiceBus::connect(url).await?))
        }
        _ => {
            let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
            let text = match left_out(url) {
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
fn left_out(url: &str) -> Option<&'static str> {
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
    async fn a_url_that_leads_nowhere_is_refused_with_what_to_use() {
        for bad in ["", "orders", "embedded:", "kafka://x", "malote:x"] {
            let Err(error) = connect(bad).await else { panic!("{bad} was accepted") };
            assert!(error.to_string().contains("use embedded:DIR"), "{error}");
        }
    }
}
