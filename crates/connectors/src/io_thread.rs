//! Threads for the I/O of connections: connections stay alive even if handlers never yield.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::broker::BrokerError;

/// The runtime of a thread that has not been started yet.
pub(crate) struct IoRuntime {
    name: &'static str,
    runtime: Runtime,
}

impl IoRuntime {
    pub(crate) fn new(name: &'static str) -> Result<Self, BrokerError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Self { name, runtime: runtime.map_err(|error| cannot_start(name, &error))? })
    }

    #[cfg_attr(not(any(feature = "postgres", feature = "rabbitmq")), allow(dead_code))]
    pub(crate) fn handle(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// Starts the thread. It ends when `main` does.
    pub(crate) fn start<F: Future<Output = ()>>(
        self,
        main: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), BrokerError> {
        let Self { name, runtime } = self;
        let thread = std::thread::Builder::new().name(name.into());
        let started = thread.spawn(move || runtime.block_on(async { main().await }));
        started.map(drop).map_err(|error| cannot_start(name, &error))
    }
}

fn cannot_start(name: &str, error: &io::Error) -> BrokerError {
    let text = format!("the thread `{name}` of the connection cannot be started: {error}");
    BrokerError::Refused { code: "no_thread".into(), text }
}

#[cfg(any(feature = "rabbitmq", feature = "servicebus"))]
mod task_thread {
    use tokio_util::sync::{CancellationToken, DropGuard};

    use super::{BrokerError, Handle, IoRuntime};

    /// A thread for spawned tasks. It ends when this is dropped.
    pub(crate) struct IoThread {
        pub handle: Handle,
        _end: DropGuard,
    }

    impl IoThread {
        pub(crate) fn start(name: &'static str) -> Result<Self, BrokerError> {
            let runtime = IoRuntime::new(name)?;
            let (handle, end) = (runtime.handle(), CancellationToken::new());
            let until = end.clone();
            runtime.start(move || until.cancelled_owned())?;
            Ok(Self { handle, _end: end.drop_guard() })
        }

        /// Runs a future on the thread, to its end even if the caller gives up. The result is then dropped, which
        /// releases what it holds.
        pub(crate) async fn run<T: Send + 'static, E: Into<BrokerError> + Send + 'static>(
            &self,
            future: impl Future<Output = Result<T, E>> + Send + 'static,
        ) -> Result<T, BrokerError> {
            match self.handle.spawn(future).await {
                Ok(result) => result.map_err(Into::into),
                Err(_) => Err(BrokerError::Closed),
            }
        }
    }
}

#[cfg(any(feature = "rabbitmq", feature = "servicebus"))]
pub(crate) use task_thread::IoThread;
