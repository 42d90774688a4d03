//! `AddPermission` and `RemovePermission`. The policy is stored and returned, but has no effect: Malote's own
//! credentials decide who may do what.

use malote_model::Action;
use serde_json::{Value, json};

use crate::Sqs;
use crate::listen::Call;
use crate::refusal::{Code, SqsError};
use crate::wire::shapes::{AddPermissionIn, EmptyOut, RemovePermissionIn};

const POLICY: &str = "sqs:Policy";
/// Statements per policy.
const STATEMENTS_MAX: usize = 20;

/// Actions per statement.
const ACTIONS_MAX: usize = 7;
/// Actions that cannot be granted to others.
const OF_THE_OWNER: [&str; 12] = [
    "AddPermission",
    "CancelMessageMoveTask",
    "CreateQueue",
    "DeleteQueue",
    "ListMessageMoveTasks",
    "ListQueues",
    "ListQueueTags",
    "RemovePermission",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
];

/// Changes the specification of a queue while no other change runs.
pub(super) async fn change(
    sqs: &Sqs,
    call: &Call,
    url: Option<&str>,
    how: impl FnOnce(&mut malote_model::QueueSpec, &str) -> Result<(), SqsError>,
) -> Result<EmptyOut, SqsError> {
    let _guard = sqs.0.changing.lock().await;
    let found = call.queue(sqs, url, Action::Manage).await?;
    let mut changed = found.facts.spec;
    how(&mut changed, &found.sqs_name)?;
    sqs.0.engine.update(found.facts.name, changed).await?;
    Ok(EmptyOut {})
}

fn label_error(label: &str, reason: &str) -> SqsError {
    SqsError::invalid(label, "Label", reason)
}

fn statements(policy: &mut Value) -> Option<&mut Vec<Value>> {
    policy.get_mut("Statement")?.as_array_mut()
}

/// Adds a statement to the policy of the queue.
pub async fn add_permission(
    sqs: &Sqs,
    call: &Call,
    request: AddPermissionIn,
) -> Result<EmptyOut, SqsError> {
    let label = request.label.ok_or_else(|| SqsError::missing("Label"))?;
    let accounts = request.accounts.ok_or_else(|| SqsError::missing("AWSAccountIds"))?;
    let actions = request
        .actions
        .filter(|all| !all.is_empty())
        .ok_or_else(|| SqsError::missing("Actions"))?;
    if accounts.is_empty() {
        return Err(SqsError::invalid("[]", "PrincipalId", "Unable to verify."));
    }
    if actions.len() > ACTIONS_MAX {
        let n = actions.len();
        let text = format!("{n} Actions were found, maximum allowed is {ACTIONS_MAX}.");
        return Err(SqsError::new(Code::OverLimit, text));
    }
    if let Some(own) = actions.iter().find(|action| OF_THE_OWNER.contains(&action.as_str())) {
        let reason = "Only the queue owner is allowed to invoke this action.";
        return Err(SqsError::invalid(format!("SQS:{own}"), "ActionName", reason));
    }
    change(sqs, call, request.queue_url.as_deref(), |spec, sqs_name| {
        let arn = call.addressing.arn(sqs_name);
        let fresh = || json!({ "Version": "2008-10-17", "Id": format!("{arn}/SQSDefaultPolicy"), "Statement": [] });
        let have = spec.labels.get(POLICY).and_then(|text| serde_json::from_str(text).ok());
        let mut policy: Value = have.unwrap_or_else(fresh);
        let Some(statements) = statements(&mut policy) else {
            let text = "The policy of the queue has no list of statements.";
            return Err(SqsError::new(Code::InvalidParameterValue, text));
        };
        if statements.iter().any(|statement| statement["Sid"] == label.as_str()) {
            return Err(label_error(&label, "Already exists."));
        }
        if statements.len() >= STATEMENTS_MAX {
            let text = format!("a policy may have at most {STATEMENTS_MAX} statements");
            return Err(SqsError::new(Code::OverLimit, text));
        }
        // A single value is not written as a list.
        let one_or_all = |mut all: Vec<String>| match all.len() {
            1 => Value::String(all.remove(0)),
            _ => all.into(),
        };
        let accounts = accounts.iter().map(|account| format!("arn:aws:iam::{account}:root")).collect();
        let actions = actions.iter().map(|action| format!("SQS:{action}")).collect();
        statements.push(json!({
            "Sid": label, "Effect": "Allow", "Principal": { "AWS": one_or_all(accounts) },
            "Action": one_or_all(actions), "Resource": arn,
        }));
        spec.labels.insert(POLICY.into(), policy.to_string());
        Ok(())
    })
    .await
}

pub async fn remove_permission(
    sqs: &Sqs,
    call: &Call,
    request: RemovePermissionIn,
) -> Result<EmptyOut, SqsError> {
    let label = request.label.ok_or_else(|| SqsError::missing("Label"))?;
    change(sqs, call, request.queue_url.as_deref(), |spec, _| {
        let missing = || label_error(&label, "can't find label.");
        let text = spec.labels.get(POLICY).ok_or_else(missing)?;
        let mut policy: Value = serde_json::from_str(text).map_err(|_| missing())?;
        let left = {
            let statements = statements(&mut policy).ok_or_else(missing)?;
            let before = statements.len();
            statements.retain(|statement| statement["Sid"] != label.as_str());
            if statements.len() == before {
                return Err(missing());
            }
            statements.len()
        };
        match left {
            0 => drop(spec.labels.remove(POLICY)),
            _ => drop(spec.labels.insert(POLICY.into(), policy.to_string())),
        }
        Ok(())
    })
    .await
}
