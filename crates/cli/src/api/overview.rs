//! Calls about all queues together.

use malote_model::QueueName;
use malote_wire_native::overview::{DeadLetterGroups, Overview};

use super::path::Path;
use super::{Api, Result};

impl Api {
    /// `GET /overview`, without the list of queues.
    pub(crate) async fn overview(&self) -> Result<Overview> {
        self.get(Path::api().part("overview").query("max", 0)).await
    }

    /// `GET /dead-letters`
    pub(crate) async fn dead_letter_groups(
        &self,
        queue: Option<&QueueName>,
    ) -> Result<DeadLetterGroups> {
        self.get(Path::api().part("dead-letters").query_opt("queue", queue)).await
    }
}
