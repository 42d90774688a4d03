//! Operations on queues, messages, sessions and dead letters, and about the server.

use malote_wire_native::about::{
    DiskUsage, HealthReport, QueueHistory, QueueMetrics, ServerVersion,
};
use malote_wire_native::audit::AuditLines;
use malote_wire_native::dead_letter::{RedriveRequest, RedriveResult, ResendRequest};
use malote_wire_native::message::{MessageBatch, SentBatch, SentMessage};
use malote_wire_native::overview::{DeadLetterGroups, Overview};
use malote_wire_native::problem::ProblemKind;
use malote_wire_native::queue::{KeyPartition, QueueInfo, QueueList, QueueScale, RemovedCount};
use malote_wire_native::receive::{
    CancelRequest, CancelledCount, PeekedMessages, ReceiveDeferredRequest, ReceiveRequest,
    ReceivedBatch,
};
use malote_wire_native::saga::{SagaDetails, SagaList};
use malote_wire_native::session::{
    AcceptRequest, HeldSession, HeldUntil, HoldRequest, SessionInfo, SessionList,
};
use malote_wire_native::settings::QueueSettings;
use malote_wire_native::settle::{LeaseResults, RenewRequest, SettleRequest};

use super::parameters::{
    messages_page, metadata, metadata_headers, names_page, overview_page, sessions_page,
};
use super::{Body, Operation};
use crate::ops::metadata::CREATE;
use crate::ops::sessions::TOKEN_HEADER;

const BYTES: &str = "application/octet-stream";

/// Describes the operation of a route.
pub(super) fn describe(name: &str) -> Option<Operation> {
    queue_operation(name)
        .or_else(|| message_operation(name))
        .or_else(|| session_operation(name))
        .or_else(|| server_operation(name))
}

fn queue_operation(name: &str) -> Option<Operation> {
    let op = |summary| Operation::new("queues", summary);
    Some(match name {
        "list_queues" => {
            op("List the queues that the caller may see").query(names_page()).ok::<QueueList>()
        }
        "declare_queue" => {
            op("Declare a queue; if it exists with other settings, 409 names the field")
                .takes::<QueueSettings>()
                .declared::<QueueInfo>()
        }
        "update_queue" => {
            op("Change the given settings").takes::<QueueSettings>().ok::<QueueInfo>()
        }
        "get_queue" => op("Settings and contents of a queue").ok::<QueueInfo>(),
        "delete_queue" => op("Delete a queue, its messages and its dead letters").done(),
        "purge_queue" => op("Remove all messages that are not leased").ok::<RemovedCount>(),
        "pause_queue" => op("Stop delivery; sending and settling continue").done(),
        "resume_queue" => op("Resume delivery").done(),
        "partition" => op("The session of the fixed list that a key belongs to")
            .query(vec![("key", "string", "Any text")])
            .ok::<KeyPartition>(),
        _ => return None,
    })
}

fn message_operation(name: &str) -> Option<Operation> {
    let op = |summary| Operation::new("messages", summary);
    let dead_letters = |summary| Operation::new("dead letters", summary);
    Some(match name {
        "send" => op("Send one message; the request body and its content-type are those of the message")
            .query(metadata(Some(CREATE)))
            .headers(metadata_headers())
            .body(Body::RawMessage)
            .sent::<SentMessage>(),
        "send_batch" => op("Send messages to one queue, all or none")
            .requires::<MessageBatch>()
            .sent::<SentBatch>(),
        "send_many" => {
            op("Send messages to several queues and topics, all or none; each message names its `queue` or `topic`")
                .requires::<MessageBatch>()
                .sent::<SentBatch>()
        }
        "receive" => op("Wait for messages, and lease or remove them")
            .takes::<ReceiveRequest>()
            .ok::<ReceivedBatch>(),
        "receive_deferred" => op("Receive deferred messages by their sequence numbers")
            .takes::<ReceiveDeferredRequest>()
            .ok::<ReceivedBatch>(),
        "cancel_scheduled" => {
            op("Cancel scheduled messages").takes::<CancelRequest>().ok::<CancelledCount>()
        }
        "settle" => op("Settle leases; each has its own result")
            .requires::<SettleRequest>()
            .ok::<LeaseResults>(),
        "renew" => op("Renew leases or held sessions from now")
            .requires::<RenewRequest>()
            .ok::<LeaseResults>(),
        "peek" => op("Look at messages without receiving them")
            .query(messages_page())
            .ok::<PeekedMessages>(),
        "list_dead_letters" => {
            dead_letters("Look at dead letters").query(messages_page()).ok::<PeekedMessages>()
        }
        "group_dead_letters" => dead_letters("Dead letters of all queues, by queue, reason and text")
            .query(vec![
                ("queue", "string", "Only dead letters of this queue"),
                ("max", "integer", "Read at most this number, 1 to 1024 (default 1024)"),
            ])
            .ok::<DeadLetterGroups>(),
        "purge_dead_letters" => dead_letters("Remove all dead letters").ok::<RemovedCount>(),
        "redrive" => dead_letters("Move dead letters back to the queue they came from, or to another")
            .takes::<RedriveRequest>()
            .ok::<RedriveResult>(),
        "resend" => dead_letters("Replace a dead letter by a corrected message, atomically")
            .requires::<ResendRequest>()
            .sent::<SentMessage>(),
        _ => return None,
    })
}

fn session_operation(name: &str) -> Option<Operation> {
    let op = |summary| Operation::new("sessions", summary);
    let token = || vec![(TOKEN_HEADER, "string", "The token of the held session; required")];
    Some(match name {
        "list_sessions" => {
            op("List the sessions of a queue").query(sessions_page()).ok::<SessionList>()
        }
        "accept_session" => op("Hold a session by name, or the next that is ready")
            .takes::<AcceptRequest>()
            .answers(200, "Held", Body::json::<HeldSession>())
            .answers(204, "No session became ready in time", Body::None),
        "get_session" => op("One session").ok::<SessionInfo>(),
        "release_session" => op("Release a held session").takes::<HoldRequest>().done(),
        "renew_session" => {
            op("Renew a held session from now").takes::<HoldRequest>().ok::<HeldUntil>()
        }
        "break_session" => op("Take a session from its holder").done(),
        "get_session_state" => op("The state of a session")
            .headers(vec![(
                TOKEN_HEADER,
                "string",
                "The token of the held session; without it, the grant `manage` is needed",
            )])
            .answers(200, "The state, as it was set", Body::Text(BYTES))
            .answers(204, "The session has no state", Body::None),
        "set_session_state" => {
            op("Set the state of a held session: the request body, at most 256 KiB")
                .headers(token())
                .body(Body::RawMessage)
                .done()
        }
        "clear_session_state" => op("Clear the state of a held session").headers(token()).done(),
        "list_sagas" => {
            Operation::new("sagas", "List the sagas of a name: sessions of the queue `saga.<name>`")
                .query(sessions_page())
                .ok::<SagaList>()
        }
        "get_saga" => {
            Operation::new("sagas", "One saga, with its steps and data").ok::<SagaDetails>()
        }
        _ => return None,
    })
}

fn server_operation(name: &str) -> Option<Operation> {
    let observe = |summary| Operation::new("observe", summary);
    let operate = |summary| Operation::new("operate", summary);
    let about = |summary| Operation::new("about", summary);
    let text = || Body::Text("text/plain");
    let exposition =
        "The text format 0.0.4, or OpenMetrics if `Accept` names application/openmetrics-text";
    Some(match name {
        "history" => {
            observe("One hour of a queue, one point every ten seconds").ok::<QueueHistory>()
        }
        "overview" => observe("The state of the broker: sums, what needs attention, and a page of queues")
            .query(overview_page())
            .ok::<Overview>(),
        "overview_events" => observe(
            "The overview as server-sent events: one `overview` whenever it changed, at most once a second; `ended` \
             with a problem if the caller may no longer read it",
        )
        .query(overview_page())
        .answers(200, "The events", Body::Text("text/event-stream")),
        "history_of_all" => {
            observe("One hour of all queues together, one point every ten seconds").ok::<QueueHistory>()
        }
        "scale" => observe("The load of a queue, for scalers").ok::<QueueScale>(),
        "openapi" => about("This document").answers(200, "Done", Body::AnyJson),
        "version" => about("The version of the server").ok::<ServerVersion>(),
        "problem" => about("The page that a problem's `type` names").ok::<ProblemKind>(),
        "disk" => operate("Disk usage, and the work of housekeeping since the start").ok::<DiskUsage>(),
        "audit" => operate(
            "The audit log: logins and administrative operations, for callers who may manage everything",
        )
        .query(vec![
            ("after", "integer", "Records after this number, oldest first; the newest ones if absent"),
            ("max", "integer", "At most this number of records, 1 to 1024; 100 if absent"),
            ("caller", "string", "Only of callers with this name"),
            ("action", "string", "Only with this action, such as login, declare or delete"),
            ("outcome", "string", "Only done, refused or unknown"),
        ])
        .ok::<AuditLines>(),
        "backup" => operate(
            "All durable data as one file for `malote restore`; needs manage and receive on every queue",
        )
        .answers(200, "The backup", Body::Text(BYTES)),
        "connect" => Operation::new(
            "native connection",
            "Open a WebSocket with sub-protocol malote.v1.json or malote.v1.msgpack; frames: ClientFrame, ServerFrame",
        )
        .answers(101, "Frames follow", Body::None),
        "livez" => observe("Whether the process is alive").answers(200, "Alive", text()).answers(
            503,
            "The disk or the broker failed: restart the process",
            text(),
        ),
        "readyz" => observe("Whether the process is ready for work")
            .query(vec![("verbose", "string", "List the checks")])
            .answers(200, "Ready", text())
            .answers(503, "Not ready", text()),
        "health_all" => health(observe("The health of the queue with the worst backlog")),
        "health_queue" => health(observe("The health of a queue: whether its backlog is high")),
        "metrics" => {
            observe("Prometheus metrics, summed over queues").answers(200, exposition, text())
        }
        "metrics_per_object" => observe("Prometheus metrics, by queue and topic")
            .query(vec![
                ("prefix", "string", "Only queues and topics with this prefix"),
                ("after", "string", "Only names after this one"),
                ("max", "integer", "Maximum number of queues, and of topics; up to 5000"),
            ])
            .answers(200, exposition, text()),
        "metrics_queues" => observe("Every queue in five numbers").ok::<Vec<QueueMetrics>>(),
        _ => return None,
    })
}

fn health(operation: Operation) -> Operation {
    operation.answers(200, "OK", Body::json::<HealthReport>()).answers(
        503,
        "Warning or error",
        Body::json::<HealthReport>(),
    )
}
