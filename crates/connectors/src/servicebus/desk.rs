//! A node that is asked and answers: `$cbs`, and `$management` of an entity. One link each way, in one session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use malote_wire_amqp::message::{Body, Draft, Message as Wire, Properties};
use malote_wire_amqp::performative::{Attach, Role, Source, Target};
use malote_wire_amqp::types::{Map, Str, Value};
use tokio::sync::oneshot;

use super::connection::{Connection, LinkHandle};
use super::driver::{Asking, Command, Wanted};
use super::error::{Error, Result};
use super::limits;

/// Both links.
pub(super) struct Desk {
    requests: DeskLink,
    answers: DeskLink,
    /// Where answers go, as requests name it.
    reply_to: Str,
    next_id: AtomicU64,
}

/// A link without its connection, which holds it.
struct DeskLink {
    link: malote_wire_amqp::connection::LinkId,
    why: super::driver::Why,
}

impl Desk {
    pub async fn open(connection: &Arc<Connection>, address: &str) -> Result<Desk> {
        let wait = connection.config.timeout;
        let reply_to = Str::from(connection.name("answers"));
        let requests = Attach {
            name: Str::from(connection.name("requests")),
            role: Role::Sender,
            source: Some(Source::at(Value::String(reply_to.clone()))),
            target: Some(Target::at(address).into()),
            ..Attach::default()
        };
        let requests = connection.attach(None, requests, Wanted::Sender, wait).await?;
        let answers = Attach {
            name: reply_to.clone(),
            role: Role::Receiver,
            source: Some(Source::at(address)),
            target: Some(Target::at(Value::String(reply_to.clone())).into()),
            ..Attach::default()
        };
        let session = Some(requests.link.session());
        let answers = connection.attach(session, answers, Wanted::Answers, wait).await?;
        Ok(Desk {
            requests: requests.keep(),
            answers: answers.keep(),
            reply_to,
            next_id: AtomicU64::new(1),
        })
    }

    /// Whether it has to be opened again.
    pub fn is_over(&self) -> bool {
        self.requests.why.get().is_some() || self.answers.why.get().is_some()
    }

    /// Asks, and waits for the answer for so long.
    pub async fn ask(
        &self,
        connection: &Connection,
        application_properties: Map,
        body: Value,
        wait: Duration,
    ) -> Result<Wire> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let properties = Properties {
            message_id: Some(Value::from(id.to_string().as_str())),
            reply_to: Some(self.reply_to.clone()),
            ..Properties::default()
        };
        let request = Draft {
            properties: Some(properties),
            application_properties,
            body: Body::Value(body),
            ..Draft::default()
        };
        let (reply, answer) = oneshot::channel();
        let (requests, answers) = (self.requests.link, self.answers.link);
        let payload = request.to_bytes();
        connection.command(Command::Ask(Asking { requests, answers, id, payload, reply })).await?;
        let answered = tokio::time::timeout(wait.saturating_add(limits::GRACE), answer).await;
        let answered = answered.map_err(|_| Error::timeout("the request was not answered"))?;
        answered.map_err(|_| self.why(connection))?
    }

    fn why(&self, connection: &Connection) -> Error {
        let over = self.requests.why.get().or(self.answers.why.get());
        over.cloned().unwrap_or_else(|| connection.why())
    }
}

impl LinkHandle {
    /// The link lives as long as its connection.
    fn keep(self) -> DeskLink {
        DeskLink { link: self.link, why: self.stay() }
    }
}
