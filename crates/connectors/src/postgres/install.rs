//! Makes the tables, once for all who come.

use super::anchor::LOCKS;
use super::config::Config;
use super::link::Link;
use super::link::Sql;
use crate::broker::BrokerError;

/// The tables of each version, from none to the newest.
const VERSIONS: [&str; 2] = [include_str!("tables.sql"), include_str!("tables_2.sql")];

const THERE: Sql = Sql { text: "select to_regclass('malote.version') is not null", types: &[] };
const VERSION: Sql = Sql { text: "select version from malote.version", types: &[] };

pub(super) async fn install(config: &Config) -> Result<(), BrokerError> {
    let link = Link::open(config, false, &[], None).await?;
    if version(&link).await? == VERSIONS.len() {
        return Ok(());
    }
    // One at a time; whoever waited finds them made.
    link.run(&format!("begin; select pg_advisory_xact_lock({LOCKS}, 0)")).await?;
    let from = version(&link).await?;
    if from > VERSIONS.len() {
        return Err(BrokerError::Refused {
            code: "newer_tables".into(),
            text: format!(
                "the schema `malote` has version {from}, this program knows {}: use the newer program",
                VERSIONS.len()
            ),
        });
    }
    for tables in &VERSIONS[from..] {
        link.run(tables).await?;
    }
    link.run(&format!("update malote.version set version = {}; commit", VERSIONS.len())).await?;
    Ok(())
}

async fn version(link: &Link) -> Result<usize, BrokerError> {
    let there = link.rows(&THERE, &[]).await?;
    if !there.first().map_or(Ok(false), |row| row.try_get(0))? {
        return Ok(0);
    }
    let rows = link.rows(&VERSION, &[]).await?;
    let version: i32 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(usize::try_from(version).unwrap_or(0))
}
