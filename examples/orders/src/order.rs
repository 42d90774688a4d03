//! The orders, and the expected result of each.

use malote::{Capabilities, RetryHold};
use serde::{Deserialize, Serialize};

/// The queue of all orders.
pub const QUEUE: &str = "orders";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Unique, so that repeated orders are recognized.
    pub id: String,
    /// The session: orders of a customer are applied in the order of sending.
    pub customer: String,
    /// A counter per customer and producer, to check the order.
    pub number: u32,
    /// The price. An order with the price 0 always fails.
    pub cents: i64,
    /// Simulates a bug: this order crashes the worker.
    #[serde(default)]
    pub crashes: bool,
}

/// The expected result of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Applied,
    /// Dead-lettered after all attempts failed.
    Poison,
    /// Dead-lettered after three crashed workers.
    Crashes,
}

/// All orders of the three producers.
#[derive(Clone)]
pub struct Plan {
    /// By producer, in the order of sending.
    pub by_producer: [(&'static str, Vec<(Order, Expected)>); 3],
    /// Ids of messages that cannot be decoded.
    pub undecodable: Vec<String>,
}

/// Every 60th order always fails.
const POISON_EVERY: usize = 60;

impl Plan {
    /// `web`: one producer can send messages that cannot be decoded. `single_process`: a crashed worker crashes the
    /// broker too.
    pub fn new(
        orders: usize,
        customers: usize,
        broker: &Capabilities,
        web: bool,
        single_process: bool,
    ) -> Self {
        let customers = customers.max(1);
        let by_producer = ["web", "mobile", "partner"].map(|producer| {
            let mut numbers = vec![0; customers];
            let mut make_order = |nth: usize| {
                let customer = nth % customers;
                numbers[customer] += 1;
                // This order needs a broker that distinguishes lost workers from failed attempts, and that survives the
                // worker.
                let tracks_losses =
                    broker.changes && broker.retry_hold == RetryHold::Session && !single_process;
                let crashes = producer == "web" && nth == 20 && tracks_losses;
                let poison = nth % POISON_EVERY == 7;
                let expected = match (crashes, poison) {
                    (true, _) => Expected::Crashes,
                    (_, true) => Expected::Poison,
                    _ => Expected::Applied,
                };
                let cents = if poison { 0 } else { 100 + nth as i64 };
                let customer_name = format!("customer-{customer}");
                let (id, number) = (format!("{producer}-{nth}"), numbers[customer]);
                (Order { id, customer: customer_name, number, cents, crashes }, expected)
            };
            (producer, (0..orders / 3).map(&mut make_order).collect())
        });
        let undecodable = if web {
            vec!["undecodable-1".to_owned(), "undecodable-2".to_owned()]
        } else {
            Vec::new()
        };
        Self { by_producer, undecodable }
    }

    /// The number of different messages.
    pub fn len(&self) -> usize {
        self.by_producer.iter().map(|(_, orders)| orders.len()).sum::<usize>()
            + self.undecodable.len()
    }

    /// Orders with this expected result, and their producers.
    pub fn with(&self, wanted: Expected) -> impl Iterator<Item = (&'static str, &Order)> {
        let all = self
            .by_producer
            .iter()
            .flat_map(|(by, orders)| orders.iter().map(move |make_order| (*by, make_order)));
        all.filter(move |(_, (_, expected))| *expected == wanted)
            .map(|(by, (order, _))| (by, order))
    }
}
