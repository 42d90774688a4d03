//! The servers of a run, and what happens to them.

use std::time::Duration;

use malote_connectors::Broker as _;
use malote_model::QueueSpec;
use malote_services::{PostgresPair, RabbitMq};
use parking_lot::Mutex;

use crate::common::queue;

/// Nodes of RabbitMQ.
pub const NODES: usize = 3;
/// RabbitMQ's nodes write down half a second later that they keep the list of streams together, and never ask again: one
/// that is killed before that is of no use to the others when it is back. Only the first stream of a cluster has them begin.
const STREAMS_KNOWN_AFTER: Duration = Duration::from_secs(2);

/// Servers that are one broker, of which one can fail.
pub enum Servers {
    RabbitMq(Mutex<Nodes>),
    Postgres(Mutex<Pair>),
}

pub struct Nodes {
    all: RabbitMq,
    /// The node of the next fault, or the one that is down.
    victim: usize,
    down: bool,
}

pub struct Pair {
    both: PostgresPair,
    down: bool,
}

impl Servers {
    pub fn rabbitmq() -> Self {
        let all = RabbitMq::cluster(NODES).unwrap_or_else(|why| panic!("{why}"));
        let url = all.url(0);
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let broker = malote_connectors::rabbitmq::RabbitMq::connect(&url).await.unwrap();
            broker.declare(&queue("first"), QueueSpec::default()).await.unwrap();
            broker.close().await.unwrap();
        });
        std::thread::sleep(STREAMS_KNOWN_AFTER);
        Self::RabbitMq(Mutex::new(Nodes { all, victim: 0, down: false }))
    }

    pub fn postgres() -> Self {
        let both = PostgresPair::start().unwrap_or_else(|why| panic!("{why}"));
        Self::Postgres(Mutex::new(Pair { both, down: false }))
    }

    /// What a fault is, for people.
    pub fn fault(&self) -> &'static str {
        match self {
            Self::RabbitMq(_) => "nodes killed",
            Self::Postgres(_) => "primaries crashed and standbys promoted",
        }
    }

    /// Whether what was answered as settled is so whatever happens: RabbitMQ answers no acknowledgement, so that one may
    /// be lost on its way.
    pub fn settles_for_good(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// How they are reached. `through`: over the node of the next fault, or over another one.
    pub fn url(&self, through: bool) -> String {
        match self {
            Self::RabbitMq(nodes) => {
                let nodes = nodes.lock();
                let first = if through { nodes.victim } else { nodes.victim + 1 };
                let order: Vec<_> = (first..first + NODES).map(|node| node % NODES).collect();
                // Fewer partitions than usual: making them takes most of a trial's time.
                format!("{}?partitions=4", nodes.all.url_of_all(&order, 0))
            }
            Self::Postgres(pair) => pair.lock().both.url("postgres"),
        }
    }

    /// One server fails. With PostgreSQL the other takes over; RabbitMQ does that by itself.
    pub fn strike(&self) {
        match self {
            Self::RabbitMq(nodes) => {
                let mut nodes = nodes.lock();
                let victim = nodes.victim;
                nodes.all.kill(victim);
                nodes.down = true;
            }
            Self::Postgres(pair) => {
                let mut pair = pair.lock();
                pair.both.crash().unwrap_or_else(|why| panic!("{why}"));
                pair.both.promote().unwrap_or_else(|why| panic!("{why}"));
                pair.down = true;
            }
        }
    }

    /// All are there again; whether one was not.
    pub fn mend(&self) -> bool {
        match self {
            Self::RabbitMq(nodes) => {
                let mut nodes = nodes.lock();
                let down = std::mem::take(&mut nodes.down);
                if down {
                    let victim = nodes.victim;
                    nodes.all.restart(victim).unwrap_or_else(|why| panic!("{why}"));
                    nodes.victim = (victim + 1) % NODES;
                }
                down
            }
            Self::Postgres(pair) => {
                let mut pair = pair.lock();
                let down = std::mem::take(&mut pair.down);
                if down {
                    pair.both.follow().unwrap_or_else(|why| panic!("{why}"));
                }
                down
            }
        }
    }
}
