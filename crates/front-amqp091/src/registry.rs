//! The open connections, for the management API.
//!
//! An entry contains what is fixed once a connection is open. The connection itself keeps what changes, and answers
//! inquiries of the management API. So publishing and consuming do not touch the registry. The server limits connections,
//! and so the number of entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use malote_model::{QueueName, Timestamp};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::conn::Conn;
use crate::conn::channel::{Channel, Mode};
use crate::conn::handshake::Session;
use crate::wire::error::{Exception, ReplyCode};
use crate::wire::table::FieldTable;
use crate::{Peer, limits};

/// Open connections by number.
#[derive(Default)]
pub(crate) struct Registry(Mutex<BTreeMap<u64, Arc<ConnectionEntry>>>);

pub(crate) struct ConnectionEntry {
    /// `127.0.0.1:40000 -> 127.0.0.1:5672`.
    pub name: String,
    pub session: Arc<Session>,
    pub peer: Peer,
    pub connected_at: Timestamp,
    inquiries: mpsc::Sender<Inquiry>,
}

/// A request of the management API to a connection.
pub(crate) enum Inquiry {
    Describe(oneshot::Sender<ConnectionSnapshot>),
    /// Close it, with this reason.
    Close(String),
}

/// The changing part of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSnapshot {
    pub blocked: bool,
    pub traffic: Traffic,
    pub channels: Vec<ChannelSnapshot>,
}

/// What went over the socket since the handshake.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Traffic {
    pub received_bytes: u64,
    pub reads: u64,
    pub sent_bytes: u64,
    pub writes: u64,
}

#[derive(Debug)]
pub(crate) struct ChannelSnapshot {
    pub number: u16,
    pub confirm: bool,
    pub transactional: bool,
    pub prefetch: u16,
    pub prefetch_all: u16,
    pub unacked: usize,
    pub unconfirmed: usize,
    pub uncommitted: usize,
    pub acks_uncommitted: usize,
    pub consumers: Vec<ConsumerSnapshot>,
}

#[derive(Debug)]
pub(crate) struct ConsumerSnapshot {
    pub tag: String,
    pub queue: QueueName,
    pub no_ack: bool,
    pub exclusive: bool,
    pub prefetch: u32,
    pub arguments: FieldTable,
    /// None if only the engine knows which consumer of the queue is active.
    pub active: Option<bool>,
}

/// Removes an entry when its connection ends.
pub(crate) struct Registered<'r> {
    registry: &'r Registry,
    number: u64,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.registry.0.lock().remove(&self.number);
    }
}

impl Registry {
    pub fn add(&self, conn: &Conn, inquiries: mpsc::Sender<Inquiry>) -> Registered<'_> {
        let Peer { address, port, local, .. } = conn.peer.clone();
        let remote = std::net::SocketAddr::new(address, port);
        let entry = ConnectionEntry {
            name: format!("{remote} -> {local}"),
            session: conn.session.clone(),
            peer: conn.peer.clone(),
            connected_at: conn.front.engine.now(),
            inquiries,
        };
        self.0.lock().insert(conn.number, Arc::new(entry));
        Registered { registry: self, number: conn.number }
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// All connections, oldest first.
    pub fn all(&self) -> Vec<Arc<ConnectionEntry>> {
        self.0.lock().values().cloned().collect()
    }

    pub fn find(&self, name: &str) -> Option<Arc<ConnectionEntry>> {
        self.0.lock().values().find(|entry| entry.name == name).cloned()
    }
}

impl ConnectionEntry {
    /// Asks the connection for its state. None if it has ended, or is too busy to answer.
    pub async fn describe(&self) -> Option<ConnectionSnapshot> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.inquiries.send(Inquiry::Describe(answer)).await.ok()?;
            answered.await.ok()
        };
        timeout(limits::MANAGEMENT_INQUIRY_MAX, asked).await.ok().flatten()
    }

    /// Closes the connection. False if it has ended already.
    pub async fn close(&self, reason: String) -> bool {
        let asked = self.inquiries.send(Inquiry::Close(reason));
        timeout(limits::MANAGEMENT_INQUIRY_MAX, asked).await.is_ok_and(|sent| sent.is_ok())
    }
}

impl Conn {
    pub(crate) fn answer_inquiry(&mut self, inquiry: Inquiry) {
        match inquiry {
            Inquiry::Describe(answer) => {
                // The request may have ended meanwhile.
                let _ = answer.send(self.snapshot());
            }
            Inquiry::Close(reason) => {
                self.make_progress();
                self.close_connection(&Exception::new(ReplyCode::ConnectionForced, reason));
            }
        }
    }

    fn snapshot(&self) -> ConnectionSnapshot {
        let open = self.channels.iter().filter(|(_, channel)| !channel.closing);
        let mut channels: Vec<_> =
            open.map(|(&number, channel)| channel_snapshot(number, channel)).collect();
        channels.sort_by_key(|channel| channel.number);
        ConnectionSnapshot { blocked: self.blocked, traffic: self.traffic, channels }
    }
}

fn channel_snapshot(number: u16, channel: &Channel) -> ChannelSnapshot {
    let (mut unconfirmed, mut uncommitted, mut acks_uncommitted) = (0, 0, 0);
    match &channel.mode {
        Mode::Plain => {}
        Mode::Confirm(confirms) => unconfirmed = confirms.pending(),
        Mode::Transaction(staged) => {
            (uncommitted, acks_uncommitted) = (staged.publications.len(), staged.settled.len());
        }
    }
    let consumers = channel.consumers.iter().map(|(tag, consumer)| ConsumerSnapshot {
        tag: tag.as_str().to_owned(),
        queue: consumer.queue.clone(),
        no_ack: consumer.no_ack,
        exclusive: consumer.exclusive,
        prefetch: consumer.limit,
        arguments: consumer.arguments.clone(),
        active: consumer.always_active.then_some(true),
    });
    ChannelSnapshot {
        number,
        confirm: matches!(channel.mode, Mode::Confirm(_)),
        transactional: matches!(channel.mode, Mode::Transaction(_)),
        prefetch: channel.prefetch,
        prefetch_all: channel.prefetch_all,
        unacked: channel.unacked.len(),
        unconfirmed,
        uncommitted,
        acks_uncommitted,
        consumers: consumers.collect(),
    }
}
