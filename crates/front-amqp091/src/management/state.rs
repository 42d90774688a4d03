//! What all requests share.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use malote_engine::History;
use malote_http::Budget;
use malote_model::{Timestamp, WebGuard};
use tokio::sync::Semaphore;

use crate::{Front, limits};

/// A port of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerFacts {
    /// RabbitMQ's word: `amqp`, `amqp/ssl`, `http`.
    pub protocol: &'static str,
    pub address: SocketAddr,
}

/// The management API of RabbitMQ. Cheap to clone.
#[derive(Clone)]
pub struct ManagementApi(pub(super) Arc<ManagementState>);

pub(crate) struct ManagementState {
    pub front: Arc<Front>,
    pub history: Arc<History>,
    pub web: WebGuard,
    pub started_at: Timestamp,
    pub bodies: Arc<Budget>,
    /// Lists that are sorted at the same time: each is in memory as a whole.
    pub sorts: Arc<Semaphore>,
    listeners: OnceLock<Vec<ListenerFacts>>,
}

impl ManagementApi {
    pub fn new(front: Arc<Front>, history: Arc<History>, web: WebGuard) -> Self {
        let started_at = front.engine.now();
        let bytes_max = limits::MANAGEMENT_BODIES_BYTES_MAX;
        Self(Arc::new(ManagementState {
            front,
            history,
            web,
            started_at,
            // One address gets at most half.
            bodies: Budget::new(bytes_max, bytes_max / 2),
            sorts: Arc::new(Semaphore::new(limits::MANAGEMENT_SORTS_MAX)),
            listeners: OnceLock::new(),
        }))
    }

    /// The open ports, once they are known.
    pub fn set_listeners(&self, listeners: Vec<ListenerFacts>) {
        // They are opened once.
        let _ = self.0.listeners.set(listeners);
    }
}

impl ManagementState {
    pub fn listeners(&self) -> &[ListenerFacts] {
        self.listeners.get().map_or(&[], Vec::as_slice)
    }
}
