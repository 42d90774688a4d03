//! The HTTP API of a server, one function for each call. Nothing here prints.

mod audit;
mod client;
mod connect;
mod credentials;
mod definitions;
mod endpoint;
mod error;
mod overview;
mod path;
mod sagas;
mod tls;
pub(crate) mod topics;

pub(crate) use audit::AuditFilter;
pub(crate) use connect::{ConnectArgs, check_url};
pub(crate) use credentials::{CredentialArgs, Credentials};
pub(crate) use error::ApiError;
pub(crate) use path::encode;

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use malote_model::{QueueName, SessionId};
use malote_wire_native::about::{HealthReport, ServerVersion};
use malote_wire_native::dead_letter::{RedriveRequest, RedriveResult, ResendRequest};
use malote_wire_native::message::{MessageBatch, SentBatch, SentMessage};
use malote_wire_native::queue::{QueueInfo, QueueList, RemovedCount};
use malote_wire_native::receive::{PeekedMessages, ReceiveRequest, ReceivedBatch};
use malote_wire_native::received::ReceivedMessage;
use malote_wire_native::session::{
    AcceptRequest, HeldSession, HeldUntil, HoldRequest, SessionInfo, SessionList,
};
use malote_wire_native::settings::QueueSettings;
use malote_wire_native::settle::{LeaseResults, SettleRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;

use client::{ApiResponse, Client};
use path::Path;

type Result<T> = std::result::Result<T, ApiError>;

/// A client of one server, with the caller's credentials.
pub(crate) struct Api {
    client: Client,
}

/// Which messages to peek at.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeekFilter {
    /// Lowest sequence number.
    pub from: u64,
    /// Largest number of messages.
    pub max: u64,
    pub session: Option<SessionId>,
    pub state: Option<&'static str>,
}

impl PeekFilter {
    fn append_to(&self, path: Path) -> Path {
        path.query("from", self.from)
            .query("max", self.max)
            .query_opt("session", self.session.as_ref())
            .query_opt("state", self.state)
    }
}

impl Api {
    /// `GET /queues`
    pub(crate) async fn queues(&self) -> Result<Vec<QueueInfo>> {
        Ok(self.get::<QueueList>(Path::api().part("queues")).await?.queues)
    }

    /// `GET /backup`. `write` gets the response in pieces; the inner error is its own.
    pub(crate) async fn backup(
        &self,
        write: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<std::io::Result<u64>> {
        self.client.download(Path::api().part("backup"), write).await
    }

    /// `GET /queues/{queue}`
    pub(crate) async fn queue(&self, queue: &QueueName) -> Result<QueueInfo> {
        self.get(Path::queue(queue)).await
    }

    /// `PUT /queues/{queue}`. Returns whether the queue was created, and the queue.
    pub(crate) async fn declare(
        &self,
        queue: &QueueName,
        spec: &QueueSettings,
    ) -> Result<(bool, QueueInfo)> {
        let response = self.client.call(Method::PUT, Path::queue(queue), json(spec), None).await?;
        Ok((response.status == 201, response.json()?))
    }

    /// `PATCH /queues/{queue}`
    pub(crate) async fn update(
        &self,
        queue: &QueueName,
        spec: &QueueSettings,
    ) -> Result<QueueInfo> {
        self.client.call(Method::PATCH, Path::queue(queue), json(spec), None).await?.json()
    }

    /// `DELETE /queues/{queue}`
    pub(crate) async fn delete(&self, queue: &QueueName) -> Result<()> {
        self.client.call(Method::DELETE, Path::queue(queue), None, None).await.map(drop)
    }

    /// `POST /queues/{queue}/purge`
    pub(crate) async fn purge(&self, queue: &QueueName) -> Result<RemovedCount> {
        self.post(Path::queue(queue).part("purge"), &()).await
    }

    /// `POST /queues/{queue}/pause` or `…/resume`
    pub(crate) async fn pause(&self, queue: &QueueName, pause: bool) -> Result<()> {
        let verb = if pause { "pause" } else { "resume" };
        self.post_without_result(Path::queue(queue).part(verb), &()).await
    }

    /// `POST /queues/{queue}/messages/batch`
    pub(crate) async fn send(
        &self,
        queue: &QueueName,
        batch: &MessageBatch,
    ) -> Result<Vec<SentMessage>> {
        let path = Path::queue(queue).part("messages").part("batch");
        Ok(self.post::<SentBatch>(path, batch).await?.messages)
    }

    /// `POST /queues/{queue}/receive`
    pub(crate) async fn receive(
        &self,
        queue: &QueueName,
        request: &ReceiveRequest,
    ) -> Result<Vec<ReceivedMessage>> {
        let path = Path::queue(queue).part("receive");
        Ok(self
            .post_and_wait(path, request, request.wait_ms)
            .await?
            .json::<ReceivedBatch>()?
            .messages)
    }

    /// `POST /queues/{queue}/settle`
    pub(crate) async fn settle(
        &self,
        queue: &QueueName,
        request: &SettleRequest,
    ) -> Result<LeaseResults> {
        self.post(Path::queue(queue).part("settle"), request).await
    }

    /// `GET /queues/{queue}/messages`
    pub(crate) async fn peek(
        &self,
        queue: &QueueName,
        filter: &PeekFilter,
    ) -> Result<PeekedMessages> {
        self.get(filter.append_to(Path::queue(queue).part("messages"))).await
    }

    /// `GET /queues/{queue}/sessions`
    pub(crate) async fn sessions(
        &self,
        queue: &QueueName,
        after: Option<&str>,
        max: u64,
    ) -> Result<SessionList> {
        let path = Path::queue(queue).part("sessions").query("max", max);
        self.get(path.query_opt("after", after)).await
    }

    /// `GET /queues/{queue}/sessions/{session}`
    pub(crate) async fn session(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> Result<SessionInfo> {
        self.get(Path::session(queue, session)).await
    }

    /// `POST /queues/{queue}/sessions/accept`. `None` if no session became ready in time.
    pub(crate) async fn accept(
        &self,
        queue: &QueueName,
        request: &AcceptRequest,
    ) -> Result<Option<HeldSession>> {
        let path = Path::queue(queue).part("sessions").part("accept");
        let response = self.post_and_wait(path, request, request.wait_ms).await?;
        if response.status == 204 { Ok(None) } else { response.json().map(Some) }
    }

    /// `POST /queues/{queue}/sessions/{session}/release`
    pub(crate) async fn release(&self, queue: &QueueName, held: &HeldSession) -> Result<()> {
        let path = Path::queue(queue).part("sessions").part(&held.session).part("release");
        self.post_without_result(path, &HoldRequest { token: held.token.clone(), lock_ms: None })
            .await
    }

    /// `POST /queues/{queue}/sessions/{session}/renew`. Returns the new expiry of the hold.
    pub(crate) async fn renew(
        &self,
        queue: &QueueName,
        held: &HeldSession,
        lock_ms: Option<u64>,
    ) -> Result<u64> {
        let path = Path::queue(queue).part("sessions").part(&held.session).part("renew");
        Ok(self
            .post::<HeldUntil>(path, &HoldRequest { token: held.token.clone(), lock_ms })
            .await?
            .until)
    }

    /// `POST /queues/{queue}/sessions/{session}/break`
    pub(crate) async fn break_hold(&self, queue: &QueueName, session: &SessionId) -> Result<()> {
        self.post_without_result(Path::session(queue, session).part("break"), &()).await
    }

    /// `GET /queues/{queue}/sessions/{session}/state`. `None` if the session has no state.
    pub(crate) async fn state(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> Result<Option<Bytes>> {
        let path = Path::session(queue, session).part("state");
        let response = self.client.call(Method::GET, path, None, None).await?;
        Ok((response.status != 204).then_some(response.body))
    }

    /// `PUT` or `DELETE /queues/{queue}/sessions/{session}/state`
    pub(crate) async fn set_state(
        &self,
        queue: &QueueName,
        held: &HeldSession,
        state: Option<Bytes>,
    ) -> Result<()> {
        let path = Path::queue(queue).part("sessions").part(&held.session).part("state");
        let method = if state.is_some() { Method::PUT } else { Method::DELETE };
        let body = state.map(|bytes| ("application/octet-stream", bytes));
        self.client.call(method, path, body, Some(&held.token)).await.map(drop)
    }

    /// `GET /queues/{queue}/dead-letters`
    pub(crate) async fn dead_letters(
        &self,
        queue: &QueueName,
        filter: &PeekFilter,
    ) -> Result<PeekedMessages> {
        self.get(filter.append_to(Path::queue(queue).part("dead-letters"))).await
    }

    /// `DELETE /queues/{queue}/dead-letters`
    pub(crate) async fn purge_dead_letters(&self, queue: &QueueName) -> Result<RemovedCount> {
        let path = Path::queue(queue).part("dead-letters");
        self.client.call(Method::DELETE, path, None, None).await?.json()
    }

    /// `POST /queues/{queue}/dead-letters/redrive`
    pub(crate) async fn redrive(
        &self,
        queue: &QueueName,
        request: &RedriveRequest,
    ) -> Result<RedriveResult> {
        self.post(Path::queue(queue).part("dead-letters").part("redrive"), request).await
    }

    /// `POST /queues/{queue}/dead-letters/{seq}/resend`
    pub(crate) async fn resend(
        &self,
        queue: &QueueName,
        seq: u64,
        request: &ResendRequest,
    ) -> Result<SentMessage> {
        let path = Path::queue(queue).part("dead-letters").part(&seq.to_string()).part("resend");
        self.post(path, request).await
    }

    /// `GET /readyz?verbose`. Returns whether the server is ready, and the text of the response.
    pub(crate) async fn ready(&self) -> Result<(bool, String)> {
        let response =
            self.client.get_unchecked(Path::root().part("readyz").query("verbose", true)).await?;
        Ok((response.status == 200, String::from_utf8_lossy(&response.body).into_owned()))
    }

    /// `GET /health/queue/{queue}`, or `GET /health/queue` for the least healthy queue.
    pub(crate) async fn health(&self, queue: Option<&QueueName>) -> Result<HealthReport> {
        let path = Path::root().part("health").part("queue");
        let path = queue.iter().fold(path, |path, queue| path.part(queue.as_str()));
        let response = self.client.get_unchecked(path).await?;
        if matches!(response.status, 200 | 503)
            && let Ok(health) = serde_json::from_slice(&response.body)
        {
            return Ok(health);
        }
        response.checked()?.json()
    }

    /// `GET /version`
    pub(crate) async fn version(&self) -> Result<ServerVersion> {
        self.get(Path::api().part("version")).await
    }

    async fn get<T: DeserializeOwned>(&self, path: Path) -> Result<T> {
        self.client.call(Method::GET, path, None, None).await?.json()
    }

    async fn post<T: DeserializeOwned>(&self, path: Path, body: &impl Serialize) -> Result<T> {
        self.client.call(Method::POST, path, json(body), None).await?.json()
    }

    async fn post_without_result(&self, path: Path, body: &impl Serialize) -> Result<()> {
        self.client.call(Method::POST, path, json(body), None).await.map(drop)
    }

    /// A call that the server may answer after up to `wait_ms`.
    async fn post_and_wait(
        &self,
        path: Path,
        body: &impl Serialize,
        wait_ms: u64,
    ) -> Result<ApiResponse> {
        let wait = Duration::from_millis(wait_ms);
        self.client.call_and_wait(Method::POST, path, json(body), None, wait).await
    }
}

fn json(body: &impl Serialize) -> Option<(&'static str, Bytes)> {
    let bytes = serde_json::to_vec(body).expect("requests have text keys and finite numbers");
    // `()` means no body.
    (bytes != b"null").then(|| ("application/json", bytes.into()))
}
