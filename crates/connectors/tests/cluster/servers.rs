//! The servers of a run and their faults.

use std::time::Duration;

use malote_connectors::Broker as _;
use malote_model::QueueSpec;
use malote_services::{PostgresPair, RabbitMq};
use parking_lot::Mutex;

use crate::common::queue;

/// Nodes of the RabbitMQ cluster.
pub const NODES: usize = 3;
/// When the first stream of a cluster is declared, RabbitMQ's nodes store the members of its stream coordinator half
/// a second later. A node that is killed before that never rejoins the coordinator.
const STREAMS_KNOWN_AFTER: Duration = Duration::from_secs(2);

/// The servers of one broker.
pub enum Servers {
    RabbitMq(Mutex<Nodes>),
    Postgres(Mutex<Pair>),
}

pub struct Nodes {
    all: RabbitMq,
    /// The node that fails next, or that is down.
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

    /// A description of the faults for the summary.
    pub fn fault(&self) -> &'static str {
        match self {
            Self::RabbitMq(_) => "nodes killed",
            Self::Postgres(_) => "primaries crashed and standbys promoted",
        }
    }

    /// Whether a confirmed settlement is final. RabbitMQ does not confirm acknowledgements, so one may be lost.
    pub fn settles_for_good(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// The URL. `via_victim`: connect to the node that fails next first.
    pub fn url(&self, via_victim: bool) -> String {
        match self {
            Self::RabbitMq(nodes) => {
                let nodes = nodes.lock();
                let first = if via_victim { nodes.victim } else { nodes.victim + 1 };
                let order: Vec<_> = (first..first + NODES).map(|node| node % NODES).collect();
                // Fewer partitions than by default: declaring them takes most of a trial's time.
                format!("{}?partitions=4", nodes.all.url_of_all(&order, 0))
            }
            Self::Postgres(pair) => pair.lock().both.url("postgres"),
        }
    }

    /// Makes one server fail. For PostgreSQL, promotes the other one.
    pub fn fail_one(&self) {
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

    /// Restores a failed server. Returns whether there was one.
    pub fn restore(&self) -> bool {
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
