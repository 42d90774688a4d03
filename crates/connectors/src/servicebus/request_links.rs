//! Requests and responses of a node (`$cbs`, or `$management` of an entity): one link in each direction, in one
//! session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use malote_wire_amqp::message::{Body, Draft, Message as Wire, Properties};
use malote_wire_amqp::performative::{Attach, Role, Source, Target};
use malote_wire_amqp::types::{Map, Str, Value};
use tokio::sync::oneshot;

use super::connection::{ClientConnection, LinkHandle};
use super::driver::{DriverCommand, LinkPurpose, SendRequest};
use super::error::{Error, Result};
use super::limits;

/// The two links of a node.
pub(super) struct RequestLinks {
    requests: ConnectionLink,
    responses: ConnectionLink,
    /// The address of the responses.
    reply_to: Str,
    next_id: AtomicU64,
}

/// A link that stays attached until its connection ends.
struct ConnectionLink {
    link: malote_wire_amqp::connection::LinkId,
    end_reason: super::driver::EndReason,
}

impl RequestLinks {
    pub async fn open(connection: &Arc<ClientConnection>, address: &str) -> Result<RequestLinks> {
        let wait = connection.config.timeout;
        let reply_to = Str::from(connection.link_name("answers"));
        let requests = Attach {
            name: Str::from(connection.link_name("requests")),
            role: Role::Sender,
            source: Some(Source::at(Value::String(reply_to.clone()))),
            target: Some(Target::at(address).into()),
            ..Attach::default()
        };
        let requests = connection.attach(None, requests, LinkPurpose::Sender, wait).await?;
        let responses = Attach {
            name: reply_to.clone(),
            role: Role::Receiver,
            source: Some(Source::at(address)),
            target: Some(Target::at(Value::String(reply_to.clone())).into()),
            ..Attach::default()
        };
        let session = Some(requests.link.session());
        let responses = connection.attach(session, responses, LinkPurpose::Responses, wait).await?;
        Ok(RequestLinks {
            requests: requests.into_connection_link(),
            responses: responses.into_connection_link(),
            reply_to,
            next_id: AtomicU64::new(1),
        })
    }

    /// Whether the links must be opened again.
    pub fn is_closed(&self) -> bool {
        self.requests.end_reason.get().is_some() || self.responses.end_reason.get().is_some()
    }

    /// Sends a request and waits for its response.
    pub async fn request(
        &self,
        connection: &ClientConnection,
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
        let (requests, responses) = (self.requests.link, self.responses.link);
        let payload = request.to_bytes();
        connection
            .command(DriverCommand::Request(SendRequest {
                requests,
                responses,
                id,
                payload,
                reply,
            }))
            .await?;
        let response = tokio::time::timeout(wait.saturating_add(limits::REPLY_GRACE), answer).await;
        let response = response
            .map_err(|_| Error::timeout("the server did not answer the request in time"))?;
        response.map_err(|_| self.end_error(connection))?
    }

    fn end_error(&self, connection: &ClientConnection) -> Error {
        let end_reason = self.requests.end_reason.get().or(self.responses.end_reason.get());
        end_reason.cloned().unwrap_or_else(|| connection.end_error())
    }
}

impl LinkHandle {
    fn into_connection_link(self) -> ConnectionLink {
        ConnectionLink { link: self.link, end_reason: self.keep_attached() }
    }
}
