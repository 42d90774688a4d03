//! Creates or upgrades the tables.

use super::config::PgConfig;
use super::connection::PgConnection;
use super::connection::Sql;
use super::owner::ADVISORY_LOCK_CLASS;
use crate::broker::BrokerError;

/// The statements that upgrade the tables to each version.
const VERSIONS: [&str; 2] = [include_str!("tables.sql"), include_str!("tables_2.sql")];

const TABLES_EXIST: Sql =
    Sql { text: "select to_regclass('malote.version') is not null", types: &[] };
const VERSION: Sql = Sql { text: "select version from malote.version", types: &[] };

pub(super) async fn install(config: &PgConfig) -> Result<(), BrokerError> {
    let connection = PgConnection::open(config, false, &[], None).await?;
    if version(&connection).await? == VERSIONS.len() {
        return Ok(());
    }
    // One process at a time. The others find the new version afterwards.
    connection
        .execute(&format!("begin; select pg_advisory_xact_lock({ADVISORY_LOCK_CLASS}, 0)"))
        .await?;
    let from = version(&connection).await?;
    if from > VERSIONS.len() {
        return Err(BrokerError::Refused {
            code: "newer_tables".into(),
            text: format!(
                "the schema `malote` has version {from}, but this program supports {}: use a newer program",
                VERSIONS.len()
            ),
        });
    }
    for tables in &VERSIONS[from..] {
        connection.execute(tables).await?;
    }
    connection
        .execute(&format!("update malote.version set version = {}; commit", VERSIONS.len()))
        .await?;
    Ok(())
}

async fn version(connection: &PgConnection) -> Result<usize, BrokerError> {
    let exists = connection.query(&TABLES_EXIST, &[]).await?;
    if !exists.first().map_or(Ok(false), |row| row.try_get(0))? {
        return Ok(0);
    }
    let rows = connection.query(&VERSION, &[]).await?;
    let version: i32 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(usize::try_from(version).unwrap_or(0))
}
