//! Reads sagas that workers keep in a database. Nothing is created or changed there.

use std::pin::Pin;

use anyhow::Context as _;
use malote::{SagaState, SagaSummary};
use malote_wire_native::saga::SagaDetails;

use crate::failure::Failure;

/// The table with the sagas.
const TABLE: &str = "malote_saga";

#[derive(clap::Args)]
pub(crate) struct DatabaseArgs {
    /// Read the sagas from the database of the workers instead of the server: `sqlite:FILE` or
    /// `postgres://USER:PASSWORD@HOST/NAME`
    #[arg(long, value_name = "URL")]
    db: Option<String>,
}

type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, malote::Error>> + Send + 'a>>;

/// A database with sagas.
pub(crate) trait SagaDatabase: Send + Sync {
    fn saga<'a>(&'a self, saga: &'a str, id: &'a str) -> Doing<'a, Option<SagaState>>;
    /// At most `max` sagas after an id, in the order of ids.
    fn sagas<'a>(
        &'a self,
        saga: &'a str,
        after: &'a str,
        max: usize,
    ) -> Doing<'a, Vec<(String, SagaState)>>;
}

macro_rules! saga_database {
    ($feature:literal, $database:ty) => {
        #[cfg(feature = $feature)]
        impl SagaDatabase for $database {
            fn saga<'a>(&'a self, saga: &'a str, id: &'a str) -> Doing<'a, Option<SagaState>> {
                Box::pin(self.saga(saga, id))
            }

            fn sagas<'a>(
                &'a self,
                saga: &'a str,
                after: &'a str,
                max: usize,
            ) -> Doing<'a, Vec<(String, SagaState)>> {
                Box::pin(self.sagas(saga, after, max))
            }
        }
    };
}

saga_database!("sqlite", malote::once::sqlite::Sqlite);
saga_database!("postgres", malote::once::postgres::Postgres);

/// An open database.
pub(crate) struct Database(Box<dyn SagaDatabase>);

impl DatabaseArgs {
    /// None if the sagas are on the server.
    pub(crate) async fn open(&self) -> anyhow::Result<Option<Database>> {
        let Some(url) = &self.db else { return Ok(None) };
        match url.split_once(':') {
            Some(("sqlite", file)) => sqlite(file.strip_prefix("//").unwrap_or(file)).map(Some),
            Some(("postgres" | "postgresql", _)) => postgres(url).await.map(Some),
            _ => {
                let why = "--db is `sqlite:FILE` or `postgres://USER:PASSWORD@HOST/NAME`";
                Err(Failure::Usage(why.into()).into())
            }
        }
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(file: &str) -> anyhow::Result<Database> {
    let opened = malote::once::sqlite::Sqlite::open_read_only(file)
        .with_context(|| format!("cannot open {file}"));
    Ok(Database(Box::new(opened?)))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_file: &str) -> anyhow::Result<Database> {
    Err(not_built("SQLite", "sqlite"))
}

#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> anyhow::Result<Database> {
    let connected = malote::once::postgres::Postgres::connect(url).await;
    Ok(Database(Box::new(connected.context("cannot connect to the database")?)))
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_url: &str) -> anyhow::Result<Database> {
    Err(not_built("PostgreSQL", "postgres"))
}

#[cfg(not(all(feature = "sqlite", feature = "postgres")))]
fn not_built(what: &str, feature: &str) -> anyhow::Error {
    let why = format!("this malote was built without {what}: build it with `--features {feature}`");
    Failure::Usage(why).into()
}

/// The first worker that keeps sagas in a database creates the table.
fn known(error: malote::Error) -> anyhow::Error {
    match error.to_string().contains(TABLE) {
        true => {
            let why = format!("no worker keeps sagas in this database: it has no table {TABLE}");
            Failure::NotFound(why).into()
        }
        false => error.into(),
    }
}

impl Database {
    /// A page of sagas in the order of their ids, and the id after which the next page starts.
    pub(crate) async fn page(
        &self,
        saga: &str,
        after: Option<&str>,
        max: u64,
    ) -> anyhow::Result<(Vec<SagaSummary>, Option<String>)> {
        let (after, max) = (after.unwrap_or_default(), usize::try_from(max).unwrap_or(usize::MAX));
        let found = self.0.sagas(saga, after, max).await.map_err(known)?;
        // The database may return less than `max`: only an empty page is the last one.
        let next = found.last().map(|(id, _)| id.clone());
        let all = found.iter().map(|(id, state)| SagaSummary::new(id, Some(state)));
        Ok((all.collect(), next))
    }

    pub(crate) async fn one(&self, saga: &str, id: &str) -> anyhow::Result<SagaDetails> {
        let none = || Failure::NotFound(format!("the database has no saga `{saga}` `{id}`"));
        let state = self.0.saga(saga, id).await.map_err(known)?.ok_or_else(none)?;
        let short = SagaSummary::new(id, Some(&state));
        Ok(SagaDetails { summary: short, steps: state.steps, data: Some(state.data) })
    }
}
