//! Ending leases and prolonging them: each on its own outcome.

use axum::Json as Answer;
use axum::extract::State;
use malote_model::{Action, LeaseToken, QueueName, Refusal};

use crate::Api;
use crate::extract::{Caller, Json, Queue};
use crate::problem::Problem;
use crate::wire::settle::{RenewIn, ResultOut, ResultsOut, SettleIn, tokens};

/// Ends leases.
pub async fn settle(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(asked): Json<SettleIn>,
) -> Result<Answer<ResultsOut>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    Ok(Answer(settle_leases(&api, &queue, asked).await?))
}

/// Ends leases, for whoever may.
pub(crate) async fn settle_leases(
    api: &Api,
    queue: &QueueName,
    asked: SettleIn,
) -> Result<ResultsOut, Problem> {
    let (leases, settlement, state) = asked.read()?;
    let settled = api.engine.settle(Some(queue), good(&leases), settlement, state).await?;
    Ok(results(leases, settled, ResultOut::settled))
}

/// Prolongs leases or holds.
pub async fn renew(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(asked): Json<RenewIn>,
) -> Result<Answer<ResultsOut>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    Ok(Answer(renew_leases(&api, &queue, asked).await?))
}

/// Prolongs leases, for whoever may.
pub(crate) async fn renew_leases(
    api: &Api,
    queue: &QueueName,
    asked: RenewIn,
) -> Result<ResultsOut, Problem> {
    asked.check()?;
    let leases = tokens(asked.leases);
    let renewed = api.engine.renew(Some(queue), good(&leases), asked.lock_ms).await?;
    Ok(results(leases, renewed, ResultOut::renewed))
}

type Tokens = Vec<(String, Result<LeaseToken, Refusal>)>;

fn good(leases: &Tokens) -> Vec<LeaseToken> {
    leases.iter().filter_map(|(_, token)| token.as_ref().ok().copied()).collect()
}

/// The engine's outcomes in the places of the tokens that it saw, and the others' own.
fn results<T>(
    leases: Tokens,
    outcomes: Vec<Result<T, Refusal>>,
    write: fn(String, Result<T, Refusal>) -> ResultOut,
) -> ResultsOut {
    let mut outcomes = outcomes.into_iter();
    let of = |(text, token): (String, Result<LeaseToken, Refusal>)| match token {
        Err(refusal) => write(text, Err(refusal)),
        Ok(lease) => {
            let outcome = outcomes.next().unwrap_or(Err(Refusal::LeaseLost { lease }));
            write(text, outcome)
        }
    };
    ResultsOut { results: leases.into_iter().map(of).collect() }
}
