//! Converts requests to the engine's commands.

use std::rc::Rc;

use malote_engine::command::{Command, ConnectionId, ReceiveDeferred, TransactionWork};
use malote_engine::{EncodedMessage, StateChange};

use malote_model::{Address, QueueName, Timestamp};

use crate::decide::{Ask, REDRIVE, TopicAsk};
use crate::model::SentMessage;

pub(super) fn command_of(ask: &Ask) -> Command {
    let outgoing = |items: Vec<(Address, Rc<SentMessage>)>| -> Vec<(Address, EncodedMessage)> {
        let outgoing = |(to, sent_message): (Address, Rc<SentMessage>)| {
            let outgoing = match to {
                Address::Queue(_) => sent_message.outgoing.clone(),
                Address::Topic(_) => {
                    EncodedMessage::to_topic(sent_message.message.clone(), sent_message.id_given)
                        .unwrap_or_else(|refusal| panic!("invalid message: {refusal}"))
                }
            };
            (to, outgoing)
        };
        items.into_iter().map(outgoing).collect()
    };
    match ask.clone() {
        Ask::Declare { name, spec, connection } => {
            let (spec, connection) = (Box::new(spec), connection.map(ConnectionId));
            Command::Declare { name, spec, connection }
        }
        Ask::Update { name, spec } => Command::Update { name, spec: Box::new(spec) },
        Ask::Delete { name } => Command::Delete { name },
        Ask::Purge { queue, leased } => Command::Purge { queue, leased },
        Ask::PurgeThese { queue, items } => Command::PurgeThese { queue, items },
        Ask::CompleteLate { queue, seqs } => {
            // Later than any queue was declared.
            let items = seqs.into_iter().map(|seq| (seq, Timestamp(u64::MAX))).collect();
            Command::CompleteLate { queue, items }
        }
        Ask::Pause { queue, paused } => Command::Pause { queue, paused },
        // Front ends send single messages in this way.
        Ask::Send { items } if items.len() == 1 => {
            Command::SendEach { sends: vec![outgoing(items).into()] }
        }
        Ask::Send { items } => Command::Send { items: outgoing(items) },
        Ask::Commit { sends, settles, states } => {
            let change = |(queue, hold, state)| (queue, StateChange { hold, state });
            let states = states.into_iter().map(change).collect();
            Command::Commit { work: TransactionWork { sends: outgoing(sends), settles, states } }
        }
        Ask::Cancel { queue, seqs } => Command::Cancel { from: queue.into(), seqs },
        Ask::Attach(attach) => Command::Attach(attach),
        Ask::Credit { consumer, credit, replace } => Command::Credit { consumer, credit, replace },
        Ask::Detach { consumer } => Command::Detach { consumer },
        Ask::Disconnect { connection, clean } => {
            Command::Disconnect { connection: ConnectionId(connection), clean }
        }
        Ask::ReceiveDeferred { queue, seqs, hold, lock_ms, take, connection } => {
            let connection = connection.map(ConnectionId);
            Command::ReceiveDeferred(ReceiveDeferred {
                queue,
                seqs,
                hold,
                lock_ms,
                take,
                connection,
            })
        }
        Ask::Settle { leases, settlement, state } => {
            let state = state.map(|(hold, state)| StateChange { hold, state });
            Command::Settle { leases, settlement, state }
        }
        Ask::Renew { leases, lock_ms } => Command::Renew { leases, lock_ms },
        Ask::Accept(accept) => Command::Accept(accept),
        Ask::ReleaseSession { hold } => Command::ReleaseSession { hold },
        Ask::SetState { hold, state } => Command::SetState { change: StateChange { hold, state } },
        Ask::GetState { queue, session, hold } => Command::GetState { queue, session, hold },
        Ask::BreakSession { queue, session } => Command::BreakSession { queue, session },
        Ask::Move { from, items } => Command::Move { from, items, why: REDRIVE },
        Ask::Replace { from, seq, to, message } => {
            Command::Replace { from, seq, to, message: message.outgoing.clone() }
        }
        Ask::Topic(ask) => topic_command_of(ask),
    }
}

/// The model names a topic that a rule leads to by its inbox.
pub(super) fn target(queue: QueueName) -> Address {
    queue.inbox_of().map_or(Address::Queue(queue), Address::Topic)
}

fn topic_command_of(ask: TopicAsk) -> Command {
    match ask {
        TopicAsk::Declare { name, spec } => Command::DeclareTopic { name, spec: Box::new(spec) },
        TopicAsk::Delete { name } => Command::DeleteTopic { name },
        TopicAsk::Subscribe { name, spec, rules } => {
            Command::Subscribe { name, spec: Box::new(spec), rules }
        }
        TopicAsk::Bind { topic, queue, rule } => {
            Command::Bind { topic, target: target(queue), rule: Box::new(rule) }
        }
        TopicAsk::Update { name, spec } => Command::UpdateTopic { name, spec: Box::new(spec) },
        TopicAsk::Rebind { topic, queue, rule } => {
            Command::Rebind { topic, target: target(queue), rule: Box::new(rule) }
        }
        TopicAsk::Unbind { topic, queue, rule } => {
            Command::Unbind { topic, target: target(queue), rule }
        }
        TopicAsk::Cancel { topic, seqs } => Command::Cancel { from: topic.into(), seqs },
    }
}
