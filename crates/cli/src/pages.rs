//! Lists that the server returns in pages.

use std::fmt::Display;

use malote_model::limits;

use crate::output::{Output, Row};

/// Where a list starts and ends.
#[derive(clap::Args)]
pub(crate) struct Pages {
    /// Start after this id, where an earlier list ended
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Maximum number of items
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    max: u64,
}

impl Pages {
    /// Fetches pages until there are enough items and lists them. An empty list prints `nothing`. `page` gets the id
    /// after which the page starts and its maximum length, and returns the items and the start of the next page.
    pub(crate) async fn list<T: Row>(
        self,
        out: &mut Output,
        nothing: impl Display,
        mut page: impl AsyncFnMut(Option<String>, u64) -> anyhow::Result<(Vec<T>, Option<String>)>,
    ) -> anyhow::Result<()> {
        let (mut found, mut after) = (Vec::new(), self.after);
        while (found.len() as u64) < self.max {
            let most = (self.max - found.len() as u64).min(limits::RECEIVE_BATCH_MAX as u64);
            let (some, next) = page(after, most).await?;
            found.extend(some);
            after = next;
            if after.is_none() {
                break;
            }
        }
        match (found.is_empty(), after) {
            (true, _) => out.note(nothing),
            (false, Some(after)) => {
                out.note(format_args!("there may be more: continue with --after '{after}'"));
            }
            (false, None) => {}
        }
        out.list(&found)
    }
}
