//! Calls about sagas.

use malote_model::SessionId;
use malote_wire_native::saga::{SagaDetails, SagaList};

use super::path::Path;
use super::{Api, Result};

impl Api {
    /// `GET /sagas/{saga}`
    pub(crate) async fn sagas(
        &self,
        saga: &str,
        after: Option<&str>,
        max: u64,
    ) -> Result<SagaList> {
        let path = Path::api().part("sagas").part(saga).query("max", max);
        self.get(path.query_opt("after", after)).await
    }

    /// `GET /sagas/{saga}/{session}`
    pub(crate) async fn saga(&self, saga: &str, id: &SessionId) -> Result<SagaDetails> {
        self.get(Path::api().part("sagas").part(saga).part(id.as_str())).await
    }
}
