//! What is ordered, and what should become of it.

use malote::{Capabilities, RetryHold};
use serde::{Deserialize, Serialize};

/// The queue of all this.
pub const QUEUE: &str = "orders";

/// One order, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Unique: a repeat is known by it.
    pub id: String,
    /// The session: orders of one customer are applied one after the other, as they were sent.
    pub customer: String,
    /// Counted for each customer and producer: what order is checked by.
    pub number: u32,
    /// What it costs. Nothing at all is an error that no retry cures.
    pub cents: i64,
    /// A bug in the worker: this order ends its process.
    #[serde(default)]
    pub crashes: bool,
}

/// What should become of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Applied, once.
    Applied,
    /// Dead-lettered after every attempt failed.
    Poison,
    /// Dead-lettered after it took three workers with it.
    Crashes,
}

/// All orders of the three producers, made before anything is sent.
#[derive(Clone)]
pub struct Plan {
    /// By producer, in the order of sending.
    pub of: [(&'static str, Vec<(Order, Fate)>); 3],
    /// Ids of messages that were torn on the way: nobody can read them.
    pub torn: Vec<String>,
}

/// One order of so many is poison.
const POISON_EVERY: usize = 60;

impl Plan {
    /// `web`: there is a producer that can send what is no order. `alone`: a worker that ends takes the broker with it.
    pub fn new(
        orders: usize,
        customers: usize,
        broker: &Capabilities,
        web: bool,
        alone: bool,
    ) -> Self {
        let customers = customers.max(1);
        let of = ["web", "mobile", "partner"].map(|producer| {
            let mut numbers = vec![0; customers];
            let mut one = |nth: usize| {
                let customer = nth % customers;
                numbers[customer] += 1;
                // A broker that cannot tell a lost worker from a failed attempt, or from a message that was given back,
                // has no use for this one; nor one that ends with its worker, and counts its own end against no message.
                let tells = broker.changes && broker.retry_hold == RetryHold::Session && !alone;
                let crashes = producer == "web" && nth == 20 && tells;
                let poison = nth % POISON_EVERY == 7;
                let fate = match (crashes, poison) {
                    (true, _) => Fate::Crashes,
                    (_, true) => Fate::Poison,
                    _ => Fate::Applied,
                };
                let cents = if poison { 0 } else { 100 + nth as i64 };
                let customer_name = format!("customer-{customer}");
                let (id, number) = (format!("{producer}-{nth}"), numbers[customer]);
                (Order { id, customer: customer_name, number, cents, crashes }, fate)
            };
            (producer, (0..orders / 3).map(&mut one).collect())
        });
        let torn = if web { vec!["torn-1".to_owned(), "torn-2".to_owned()] } else { Vec::new() };
        Self { of, torn }
    }

    /// All that is sent, each once.
    pub fn len(&self) -> usize {
        self.of.iter().map(|(_, orders)| orders.len()).sum::<usize>() + self.torn.len()
    }

    /// Orders with this fate, and who sends them.
    pub fn with(&self, wanted: Fate) -> impl Iterator<Item = (&'static str, &Order)> {
        let all = self.of.iter().flat_map(|(by, orders)| orders.iter().map(move |one| (*by, one)));
        all.filter(move |(_, (_, fate))| *fate == wanted).map(|(by, (order, _))| (by, order))
    }
}
