//! Streams a backup while it is created.

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

/// Buffered pieces of 256 KiB for a slow reader.
const PIECES_MAX: usize = 4;

/// A backup of everything that is durable now. It contains all messages, so the caller must be allowed to read all of
/// them.
///
/// If the backup fails, the connection is closed before the end of the response, and `malote restore` refuses the file.
pub async fn backup(State(api): State<Api>, Caller(caller): Caller) -> Result<Response, Problem> {
    api.allow_everywhere(&caller, Action::Manage)?;
    api.allow_everywhere(&caller, Action::Receive)?;
    let busy = |_| Problem::new(Code::Busy, "another backup is in progress");
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
            // The reader has disconnected.
            if pieces.blocking_send(piece.map(Bytes::from)).is_err() {
                return tracing::warn!("the reader of the backup disconnected");
            }
        }
        tracing::info!("the backup is finished");
    });
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Problem::new(Code::Damaged, error.to_string()),
        _ => Problem::new(Code::Internal, format!("the backup could not be started: {error}")),
    };
    let stopping = |_| Problem::new(Code::Stopping, "the broker is stopping");
    begins.await.map_err(stopping)?.map_err(failed)?;
    let pieces = stream::unfold(waiting, |mut waiting| async move {
        waiting.recv().await.map(|piece| (piece, waiting))
    });
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}
