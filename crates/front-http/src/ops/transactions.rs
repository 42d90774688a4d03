//! Transactions: sends, settlements and session states, atomically.

use axum::Json as Answer;
use axum::extract::State;
use malote_engine::Transaction;
use malote_model::{Action, Address, Principal, QueueName, limits};
use malote_wire_native::message::{NewMessage, SentBatch};
use malote_wire_native::settle::{SessionStateChange, SettleRequest};
use malote_wire_native::transaction::{QueueSettlements, QueueStateChange, TransactionRequest};

use super::send::{addressed, prepare_all};
use crate::extract::{Caller, JsonMessages};
use crate::problem::{Code, Problem};
use crate::requests::{SettleCommand, check_list, settle_command, state_change};
use crate::{Api, convert};

/// Runs a transaction of one request.
pub async fn transact(
    State(api): State<Api>,
    Caller(caller): Caller,
    JsonMessages(asked, _share): JsonMessages<TransactionRequest>,
) -> Result<Answer<SentBatch>, Problem> {
    let TransactionRequest { send, settle, state } = asked;
    if send.is_empty() && settle.is_empty() && state.is_empty() {
        let why = "`send`, `settle` and `state` are all empty: there is nothing to do";
        return Err(Problem::new(Code::BadField, why));
    }
    let mut transaction = api.engine.transaction();
    if !send.is_empty() {
        stage_send(&api, &caller, &mut transaction, send).await.map_err(in_part("send"))?;
    }
    for QueueSettlements { queue, items } in settle {
        stage_settle(&api, &caller, &mut transaction, &queue, items).map_err(in_part("settle"))?;
    }
    for QueueStateChange { queue, change } in state {
        stage_state(&api, &caller, &mut transaction, &queue, change).map_err(in_part("state"))?;
    }
    commit(&api, transaction).await.map(Answer)
}

/// Adds the part of the request to a problem.
fn in_part(part: &'static str) -> impl Fn(Problem) -> Problem {
    move |problem| Problem::new(problem.code(), format!("{part}: {}", problem.detail()))
}

/// Stages messages with their queues or topics. Returns the destinations.
pub(crate) async fn stage_send(
    api: &Api,
    caller: &Principal,
    transaction: &mut Transaction,
    messages: Vec<NewMessage>,
) -> Result<Vec<Address>, Problem> {
    let mut all: Vec<Address> = Vec::new();
    for (to, message) in prepare_all(api, caller, addressed(messages)?).await? {
        if !all.contains(&to) {
            all.push(to.clone());
        }
        transaction.send(to, message)?;
    }
    Ok(all)
}

/// Stages the settlement of leases of one queue.
pub(crate) fn stage_settle(
    api: &Api,
    caller: &Principal,
    transaction: &mut Transaction,
    queue: &str,
    items: Vec<SettleRequest>,
) -> Result<QueueName, Problem> {
    let queue = QueueName::new(queue)?;
    api.allow(caller, Action::Receive, &queue)?;
    check_list("items", items.len(), limits::SETTLE_BATCH_MAX)?;
    for item in items {
        let SettleCommand { leases, settlement, state } = settle_command(item)?;
        for (_, lease) in leases {
            transaction.settle(Some(queue.clone()), lease?, settlement.clone())?;
        }
        if let Some(change) = state {
            transaction.state(Some(queue.clone()), change)?;
        }
    }
    Ok(queue)
}

/// Stages the state of a held session.
pub(crate) fn stage_state(
    api: &Api,
    caller: &Principal,
    transaction: &mut Transaction,
    queue: &str,
    change: SessionStateChange,
) -> Result<QueueName, Problem> {
    let queue = QueueName::new(queue)?;
    api.allow(caller, Action::Receive, &queue)?;
    transaction.state(Some(queue.clone()), state_change(change)?)?;
    Ok(queue)
}

/// Commits the transaction.
pub(crate) async fn commit(api: &Api, transaction: Transaction) -> Result<SentBatch, Problem> {
    let enough = tokio::time::sleep(api.limits.publish_wait);
    Ok(convert::sent_batch(transaction.commit_unless(enough).await?))
}
