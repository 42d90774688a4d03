//! A backup, streamed while it is made.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use malote_model::Action;
use tokio::sync::mpsc;

use crate::Api;
use crate::extract::Caller;
use crate::problem::{Code, Problem};

/// Pieces of a quarter of a mebibyte that wait for a slow reader.
const PIECES_MAX: usize = 4;

/// Everything that is durable now. It holds every message, so whoever takes it must be allowed to read them.
///
/// A backup that cannot be finished ends without its end: the connection is cut, and `malote restore` refuses it.
pub async fn backup(State(api): State<Api>, Caller(caller): Caller) -> Result<Response, Problem> {
    api.allow_everywhere(&caller, Action::Manage)?;
    api.allow_everywhere(&caller, Action::Receive)?;
    let busy = |_| Problem::new(Code::Busy, "a backup is being made already");
    let place = api.backups.clone().try_acquire_owned().map_err(busy)?;
    let engine = api.engine.clone();
    let (pieces, waiting) = mpsc::channel(PIECES_MAX);
    let (begun, begins) = tokio::sync::oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let _place = place;
        let backup = match engine.backup() {
            Ok(backup) => backup,
            Err(error) => return drop(begun.send(Err(error))),
        };
        tracing::info!(position = %backup.position(), "a backup begins");
        if begun.send(Ok(())).is_err() {
            return;
        }
        for piece in backup {
            if let Err(error) = &piece {
                tracing::error!(%error, "the backup failed");
            }
            // Whoever went away needs no more of it.
            if pieces.blocking_send(piece.map(Bytes::from)).is_err() {
                return tracing::warn!("the backup was given up by its reader");
            }
        }
        tracing::info!("the backup is finished");
    });
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Problem::new(Code::Damaged, error.to_string()),
        _ => Problem::new(Code::Internal, format!("no backup could be begun: {error}")),
    };
    let stopping = |_| Problem::new(Code::Stopping, "the broker is stopping");
    begins.await.map_err(stopping)?.map_err(failed)?;
    let pieces = stream::unfold(waiting, |mut waiting| async move {
        waiting.recv().await.map(|piece| (piece, waiting))
    });
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}
