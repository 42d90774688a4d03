//! Opens a stream to the namespace, with a timeout.

use super::config::Config;
use super::error::{Error, Result};
use crate::dial::{ByteStream, DialError};

pub(super) async fn dial(config: &Config) -> Result<Box<dyn ByteStream>> {
    let unreachable = |why: String| {
        let to = format!("{}:{}", config.host, config.port);
        Error::Unreachable { to, why }
    };
    let connecting = crate::dial::dial(&config.host, config.port, &config.tls);
    match tokio::time::timeout(config.timeout, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(DialError::Unreachable(why))) => Err(unreachable(why)),
        Ok(Err(DialError::Misconfigured(why))) => Err(Error::Config(why)),
        Err(_) => Err(unreachable("the server did not answer in time".to_owned())),
    }
}
