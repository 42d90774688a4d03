//! Sagas: words and calls.

use malote_model::SessionId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::path::Path;
use super::{Api, Result};

/// Where a saga stands.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Saga {
    pub id: String,
    pub status: String,
    pub version: u64,
    pub step: Option<String>,
    pub attempts: u32,
    pub error: Option<String>,
    pub started_at: Option<u64>,
    pub changed_at: Option<u64>,
    pub deadline: Option<u64>,
    pub held_until: Option<u64>,
    pub delayed_until: Option<u64>,
}

/// Some of them.
#[derive(Debug, Deserialize)]
pub(crate) struct Sagas {
    pub sagas: Vec<Saga>,
    pub next: Option<String>,
}

/// One step.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SagaStep {
    pub name: String,
    pub status: String,
    #[serde(default)]
    pub undo: bool,
    #[serde(default)]
    pub pivot: bool,
    #[serde(default)]
    pub attempts: u32,
    #[serde(default)]
    pub lost: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
}

/// A saga with its steps and its data.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SagaInFull {
    #[serde(flatten)]
    pub short: Saga,
    pub steps: Vec<SagaStep>,
    pub data: Option<Value>,
}

impl Api {
    /// `GET /sagas/{saga}`
    pub(crate) async fn sagas(&self, saga: &str, after: Option<&str>, max: u64) -> Result<Sagas> {
        let path = Path::api().part("sagas").part(saga).query("max", max);
        self.get(path.query_opt("after", after)).await
    }

    /// `GET /sagas/{saga}/{session}`
    pub(crate) async fn saga(&self, saga: &str, id: &SessionId) -> Result<SagaInFull> {
        self.get(Path::api().part("sagas").part(saga).part(id.as_str())).await
    }
}
