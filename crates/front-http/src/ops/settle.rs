//! Settles and renews leases. Each lease has its own result.

use axum::Json as Answer;
use axum::extract::State;
use malote_model::{Action, LeaseToken, QueueName, Refusal};
use malote_wire_native::settle::{
    LeaseResult, LeaseResults, RenewRequest, SettleRequest, parse_tokens,
};

use crate::extract::{Caller, Json, Queue};
use crate::problem::Problem;
use crate::requests::{SettleCommand, check_renew, settle_command};
use crate::{Api, convert};

pub async fn settle(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(asked): Json<SettleRequest>,
) -> Result<Answer<LeaseResults>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    Ok(Answer(settle_leases(&api, &queue, asked).await?))
}

/// Settles leases after checking the permission.
pub(crate) async fn settle_leases(
    api: &Api,
    queue: &QueueName,
    asked: SettleRequest,
) -> Result<LeaseResults, Problem> {
    let SettleCommand { leases, settlement, state } = settle_command(asked)?;
    let settled = api.engine.settle(Some(queue), good(&leases), settlement, state).await?;
    Ok(results(leases, settled, convert::settle_result))
}

/// Renews leases or session locks.
pub async fn renew(
    State(api): State<Api>,
    Caller(caller): Caller,
    Queue(queue): Queue,
    Json(asked): Json<RenewRequest>,
) -> Result<Answer<LeaseResults>, Problem> {
    api.allow(&caller, Action::Receive, &queue)?;
    Ok(Answer(renew_leases(&api, &queue, asked).await?))
}

/// Renews leases after checking the permission.
pub(crate) async fn renew_leases(
    api: &Api,
    queue: &QueueName,
    asked: RenewRequest,
) -> Result<LeaseResults, Problem> {
    check_renew(&asked)?;
    let leases = parse_tokens(asked.leases);
    let renewed = api.engine.renew(Some(queue), good(&leases), asked.lock_ms).await?;
    Ok(results(leases, renewed, convert::renew_result))
}

type Tokens = Vec<(String, Result<LeaseToken, Refusal>)>;

fn good(leases: &Tokens) -> Vec<LeaseToken> {
    leases.iter().filter_map(|(_, token)| token.as_ref().ok().copied()).collect()
}

/// Merges the results of the engine with those of invalid tokens, in the order of the request.
fn results<T>(
    leases: Tokens,
    outcomes: Vec<Result<T, Refusal>>,
    write: fn(String, Result<T, Refusal>) -> LeaseResult,
) -> LeaseResults {
    let mut outcomes = outcomes.into_iter();
    let of = |(text, token): (String, Result<LeaseToken, Refusal>)| match token {
        Err(refusal) => write(text, Err(refusal)),
        Ok(lease) => {
            let outcome = outcomes.next().unwrap_or(Err(Refusal::LeaseLost { lease }));
            write(text, outcome)
        }
    };
    LeaseResults { results: leases.into_iter().map(of).collect() }
}
