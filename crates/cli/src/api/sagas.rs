//! Sagas: words and calls.

use malote::SagaSummary;
use malote::saga::SagaStep;
use malote_model::SessionId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::path::Path;
use super::{Api, Result};

/// Some of them.
#[derive(Debug, Deserialize)]
pub(crate) struct Sagas {
    pub sagas: Vec<SagaSummary>,
    pub next: Option<String>,
}

/// A saga with its steps and its data.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SagaInFull {
    #[serde(flatten)]
    pub short: SagaSummary,
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
