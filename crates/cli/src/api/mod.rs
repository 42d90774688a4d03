//! The server's HTTP API, one function for each call. Nothing here prints; nothing outside speaks HTTP.

mod audit;
mod client;
mod connect;
mod error;
mod path;
mod sagas;
mod tls;
pub(crate) mod topics;

pub(crate) use audit::AuditLook;
pub(crate) use connect::{ConnectArgs, check_url, secret};
pub(crate) use error::ApiError;

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use malote_model::{QueueName, SessionId};
use malote_wire_native::about::{HealthReport, ServerVersion};
use malote_wire_native::dead_letter::{RedriveRequest, RedriveResult, ResendRequest};
use malote_wire_native::message::{MessageBatch, ReceivedMessage, SentBatch, SentMessage};
use malote_wire_native::queue::{QueueInfo, QueueList, RemovedCount};
use malote_wire_native::receive::{PeekedMessages, ReceiveRequest, ReceivedBatch};
use malote_wire_native::session::{
    AcceptRequest, HeldSession, HeldUntil, HoldRequest, SessionInfo, SessionList,
};
use malote_wire_native::settings::QueueSettings;
use malote_wire_native::settle::{LeaseResults, SettleRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;

use client::{Answer, Client};
use path::Path;

type Result<T> = std::result::Result<T, ApiError>;

/// One server, and who we are to it.
pub(crate) struct Api {
    client: Client,
}

/// Which messages to look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// From this sequence on.
    pub from: u64,
    /// At most so many.
    pub max: u64,
    /// Only of this session.
    pub session: Option<SessionId>,
    /// Only in this state.
    pub state: Option<&'static str>,
}

impl Look {
    fn on(&self, path: Path) -> Path {
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

    /// `GET /backup`, piece by piece. The inner error is the taker's own.
    pub(crate) async fn backup(
        &self,
        take: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<std::io::Result<u64>> {
        self.client.download(Path::api().part("backup"), take).await
    }

    /// `GET /queues/{queue}`
    pub(crate) async fn queue(&self, queue: &QueueName) -> Result<QueueInfo> {
        self.get(Path::queue(queue)).await
    }

    /// `PUT /queues/{queue}`: whether it was made, and what it is.
    pub(crate) async fn declare(
        &self,
        queue: &QueueName,
        spec: &QueueSettings,
    ) -> Result<(bool, QueueInfo)> {
        let answer = self.client.call(Method::PUT, Path::queue(queue), json(spec), None).await?;
        Ok((answer.status == 201, answer.json()?))
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
        self.tell(Path::queue(queue).part(verb), &()).await
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
        asked: &ReceiveRequest,
    ) -> Result<Vec<ReceivedMessage>> {
        let path = Path::queue(queue).part("receive");
        Ok(self.wait(path, asked, asked.wait_ms).await?.json::<ReceivedBatch>()?.messages)
    }

    /// `POST /queues/{queue}/settle`
    pub(crate) async fn settle(
        &self,
        queue: &QueueName,
        asked: &SettleRequest,
    ) -> Result<LeaseResults> {
        self.post(Path::queue(queue).part("settle"), asked).await
    }

    /// `GET /queues/{queue}/messages`
    pub(crate) async fn peek(&self, queue: &QueueName, look: &Look) -> Result<PeekedMessages> {
        self.get(look.on(Path::queue(queue).part("messages"))).await
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

    /// `POST /queues/{queue}/sessions/accept`: `None` when none became ready in time.
    pub(crate) async fn accept(
        &self,
        queue: &QueueName,
        asked: &AcceptRequest,
    ) -> Result<Option<HeldSession>> {
        let path = Path::queue(queue).part("sessions").part("accept");
        let answer = self.wait(path, asked, asked.wait_ms).await?;
        if answer.status == 204 { Ok(None) } else { answer.json().map(Some) }
    }

    /// `POST /queues/{queue}/sessions/{session}/release`
    pub(crate) async fn release(&self, queue: &QueueName, held: &HeldSession) -> Result<()> {
        let path = Path::queue(queue).part("sessions").part(&held.session).part("release");
        self.tell(path, &HoldRequest { token: held.token.clone(), lock_ms: None }).await
    }

    /// `POST /queues/{queue}/sessions/{session}/renew`: until when it is held now.
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
        self.tell(Path::session(queue, session).part("break"), &()).await
    }

    /// `GET /queues/{queue}/sessions/{session}/state`: `None` when it has none.
    pub(crate) async fn state(
        &self,
        queue: &QueueName,
        session: &SessionId,
    ) -> Result<Option<Bytes>> {
        let path = Path::session(queue, session).part("state");
        let answer = self.client.call(Method::GET, path, None, None).await?;
        Ok((answer.status != 204).then_some(answer.body))
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
        look: &Look,
    ) -> Result<PeekedMessages> {
        self.get(look.on(Path::queue(queue).part("dead-letters"))).await
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
        asked: &RedriveRequest,
    ) -> Result<RedriveResult> {
        self.post(Path::queue(queue).part("dead-letters").part("redrive"), asked).await
    }

    /// `POST /queues/{queue}/dead-letters/{seq}/resend`
    pub(crate) async fn resend(
        &self,
        queue: &QueueName,
        seq: u64,
        asked: &ResendRequest,
    ) -> Result<SentMessage> {
        let path = Path::queue(queue).part("dead-letters").part(&seq.to_string()).part("resend");
        self.post(path, asked).await
    }

    /// `GET /readyz?verbose`: whether it is, and what it says.
    pub(crate) async fn ready(&self) -> Result<(bool, String)> {
        let answer = self.client.ask(Path::root().part("readyz").query("verbose", true)).await?;
        Ok((answer.status == 200, String::from_utf8_lossy(&answer.body).into_owned()))
    }

    /// `GET /health/queue/{queue}`, or the worst of all.
    pub(crate) async fn health(&self, queue: Option<&QueueName>) -> Result<HealthReport> {
        let path = Path::root().part("health").part("queue");
        let path = queue.iter().fold(path, |path, queue| path.part(queue.as_str()));
        let answer = self.client.ask(path).await?;
        if matches!(answer.status, 200 | 503)
            && let Ok(health) = serde_json::from_slice(&answer.body)
        {
            return Ok(health);
        }
        answer.checked()?.json()
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

    async fn tell(&self, path: Path, body: &impl Serialize) -> Result<()> {
        self.client.call(Method::POST, path, json(body), None).await.map(drop)
    }

    /// A call that the server may take its time to answer.
    async fn wait(&self, path: Path, body: &impl Serialize, wait_ms: u64) -> Result<Answer> {
        let patience = Duration::from_millis(wait_ms);
        self.client.call_patiently(Method::POST, path, json(body), None, patience).await
    }
}

fn json(body: &impl Serialize) -> Option<(&'static str, Bytes)> {
    let bytes = serde_json::to_vec(body).expect("our own words have text keys and no infinities");
    // A call without anything to say has no body.
    (bytes != b"null").then(|| ("application/json", bytes.into()))
}
