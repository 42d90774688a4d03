//! Sagas that workers keep in a database: looked at there, and nothing is made or changed.

use std::pin::Pin;

use anyhow::Context as _;
use malote::{SagaState, SagaSummary};
use malote_wire_native::saga::SagaDetails;

use crate::failure::Failure;

/// Where the databases have them.
const TABLE: &str = "malote_saga";

/// Where sagas are kept.
#[derive(clap::Args)]
pub(crate) struct Kept {
    /// The database of workers that keep their sagas in one, instead of the server: `sqlite:FILE` or
    /// `postgres://USER:PASSWORD@HOST/NAME`
    #[arg(long, value_name = "URL")]
    db: Option<String>,
}

type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, malote::Error>> + Send + 'a>>;

/// What a database can be asked.
pub(crate) trait Look: Send + Sync {
    fn saga<'a>(&'a self, saga: &'a str, id: &'a str) -> Doing<'a, Option<SagaState>>;
    /// After an id, in the order of ids; at most so many.
    fn sagas<'a>(
        &'a self,
        saga: &'a str,
        after: &'a str,
        max: usize,
    ) -> Doing<'a, Vec<(String, SagaState)>>;
}

macro_rules! look {
    ($feature:literal, $database:ty) => {
        #[cfg(feature = $feature)]
        impl Look for $database {
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

look!("sqlite", malote::once::sqlite::Sqlite);
look!("postgres", malote::once::postgres::Postgres);

/// A database that was reached.
pub(crate) struct Database(Box<dyn Look>);

impl Kept {
    /// None if they are on the server.
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
    let opened = malote::once::sqlite::Sqlite::look(file)
        .with_context(|| format!("{file} cannot be opened"));
    Ok(Database(Box::new(opened?)))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_file: &str) -> anyhow::Result<Database> {
    Err(not_built("SQLite", "sqlite"))
}

#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> anyhow::Result<Database> {
    let connected = malote::once::postgres::Postgres::connect(url).await;
    Ok(Database(Box::new(connected.context("the database cannot be reached")?)))
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

/// Its table is made with the first worker that keeps sagas there.
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
    /// Some sagas after one, in the order of their ids, and after which the next page begins.
    pub(crate) async fn page(
        &self,
        saga: &str,
        after: Option<&str>,
        max: u64,
    ) -> anyhow::Result<(Vec<SagaSummary>, Option<String>)> {
        let (after, max) = (after.unwrap_or_default(), usize::try_from(max).unwrap_or(usize::MAX));
        let found = self.0.sagas(saga, after, max).await.map_err(known)?;
        // One that is not full may be the database's own bound: only an empty one is the end.
        let next = found.last().map(|(id, _)| id.clone());
        let all = found.iter().map(|(id, state)| SagaSummary::new(id, Some(state)));
        Ok((all.collect(), next))
    }

    /// One, or that there is none.
    pub(crate) async fn one(&self, saga: &str, id: &str) -> anyhow::Result<SagaDetails> {
        let none = || Failure::NotFound(format!("the database has no saga `{saga}` `{id}`"));
        let state = self.0.saga(saga, id).await.map_err(known)?.ok_or_else(none)?;
        let short = SagaSummary::new(id, Some(&state));
        Ok(SagaDetails { summary: short, steps: state.steps, data: Some(state.data) })
    }
}
