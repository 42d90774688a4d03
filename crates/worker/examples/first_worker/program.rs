use malote::model::Sessions;
use malote::{Failure, Malote, Meta, QueueSpec, Worker};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    id: String,
    cents: u64,
}

async fn charge(order: Order, meta: Meta) -> Result<(), Failure> {
    if order.cents == 0 {
        return Err(Failure::dead("NoTotal", "an order must cost something"));
    }
    if meta.attempt() == 1 {
        return Err(Failure::retry("the bank does not answer"));
    }
    println!("charged {} cents for order {}", order.cents, order.id);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), malote::Error> {
    let url = std::env::var("MALOTE_URL").unwrap_or("embedded:./data".into());
    let malote = Malote::connect(&url).await?;
    let spec = QueueSpec { sessions: Sessions::Dynamic, ..QueueSpec::default() };
    malote.declare("orders", spec).await?;

    malote.send("orders", &Order { id: "o-1".into(), cents: 900 }).session("ana").await?;
    malote.send("orders", &Order { id: "o-2".into(), cents: 0 }).session("bob").await?;

    Worker::new(&malote, "orders").handle(charge).sessions(50).run_until_signal().await?;
    malote.close().await
}
