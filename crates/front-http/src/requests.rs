//! Checks of requests before they reach the engine: ranges, lists, tokens and pages.

use malote_engine::StateChange;
use malote_model::{Address, LeaseToken, QueueName, Refusal, Rule, Settlement, TopicName, limits};
use malote_wire_native::rule::NamedRule;
use malote_wire_native::session::{AcceptRequest, SessionsQuery};
use malote_wire_native::settle::{
    ParsedTokens, RenewRequest, SessionStateChange, SettleRequest, parse_tokens,
};
use malote_wire_native::topic::RulesQuery;
use malote_wire_native::transaction::TransactionRequest;
use malote_wire_native::{
    RequestError, dead_letter, message, receive, rule, session, settings, settle, topic,
};

use crate::limits::{PAGE_DEFAULT, PAGE_MAX};
use crate::problem::{Code, Problem};

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Field(why) => Self::new(Code::BadField, why),
            RequestError::Refused(refusal) => refusal.into(),
        }
    }
}

/// Parses a token.
pub(crate) fn parse_token(text: Option<&str>) -> Result<Option<LeaseToken>, Problem> {
    Ok(text.map(str::parse::<LeaseToken>).transpose()?)
}

/// Refuses a number outside of a range.
pub(crate) fn check_range(
    what: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), Problem> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Refusal::OutOfRange { what, rule: format!("from {min} to {max}, not {value}") }.into())
}

/// Refuses a lock duration outside of its range.
pub(crate) fn check_lock(lock_ms: Option<u64>) -> Result<(), Problem> {
    match lock_ms {
        Some(ms) => check_range("lock_ms", ms, limits::LOCK_MS_MIN, limits::LOCK_MS_MAX),
        None => Ok(()),
    }
}

/// Refuses a list that is empty or too long.
pub(crate) fn check_list(what: &'static str, len: usize, max: usize) -> Result<(), Problem> {
    if (1..=max).contains(&len) {
        return Ok(());
    }
    Err(Refusal::OutOfRange { what, rule: format!("a list of 1 to {max}, not of {len}") }.into())
}

/// Refuses a session state that is too large.
pub(crate) fn check_state(len: usize) -> Result<(), Problem> {
    if len <= limits::SESSION_STATE_BYTES_MAX {
        return Ok(());
    }
    let rule = format!("at most {} bytes long, not {len}", limits::SESSION_STATE_BYTES_MAX);
    Err(Refusal::OutOfRange { what: "a session's state", rule }.into())
}

/// The length of a page.
pub(crate) fn page_length(max: Option<u64>) -> Result<usize, Problem> {
    let max = max.unwrap_or(PAGE_DEFAULT as u64);
    check_range("max", max, 1, PAGE_MAX as u64)?;
    Ok(max as usize)
}

pub(crate) fn check_receive(request: &receive::ReceiveRequest) -> Result<(), Problem> {
    let batch = limits::RECEIVE_BATCH_MAX as u64;
    check_range("max", request.max.into(), 1, batch)?;
    check_range("per_session", request.per_session.into(), 1, batch)?;
    check_range("wait_ms", request.wait_ms, 0, limits::RECEIVE_WAIT_MS_MAX)?;
    check_lock(request.lock_ms)
}

pub(crate) fn check_accept(request: &AcceptRequest, wait_ms_max: u64) -> Result<(), Problem> {
    check_range("wait_ms", request.wait_ms, 0, wait_ms_max)?;
    check_lock(request.lock_ms)
}

pub(crate) fn check_renew(request: &RenewRequest) -> Result<(), Problem> {
    check_list("leases", request.leases.len(), limits::SETTLE_BATCH_MAX)?;
    check_lock(request.lock_ms)
}

/// The first session and the number of sessions of a page.
pub(crate) fn sessions_page(query: &SessionsQuery) -> Result<(u32, usize), Problem> {
    let from = match query.after.as_deref() {
        None => 0,
        Some(after) => after.parse().map_err(|_| {
            Problem::new(Code::BadQuery, "`after` must be the `next` of another page")
        })?,
    };
    let max = query.max.unwrap_or(PAGE_DEFAULT as u64);
    check_range("max", max, 1, limits::RECEIVE_BATCH_MAX as u64)?;
    Ok((from, max as usize))
}

/// A page of rules.
pub(crate) struct RulesPage {
    pub queue: Option<QueueName>,
    /// The last rule of the previous page.
    pub after: Option<(Address, String)>,
    pub max: usize,
}

pub(crate) fn rules_page(query: RulesQuery) -> Result<RulesPage, Problem> {
    let max = page_length(query.max)?;
    let queue = query.after_queue.filter(|queue| !queue.is_empty());
    let after = match (queue, query.after_topic, query.after_rule) {
        (None, None, None) => None,
        (Some(queue), None, Some(rule)) => Some((QueueName::new(&queue)?.into(), rule)),
        (None, Some(topic), Some(rule)) => Some((TopicName::new(&topic)?.into(), rule)),
        _ => {
            let why = "after_queue and after_rule are needed together: `next` of a page has both";
            return Err(Problem::new(Code::BadQuery, why));
        }
    };
    let queue = query.queue.as_deref().map(QueueName::new).transpose()?;
    Ok(RulesPage { queue, after, max })
}

/// The rule of the model. A problem names the rule.
pub(crate) fn named_rule(rule: NamedRule) -> Result<Rule, Problem> {
    let name = rule.name.clone();
    rule.body().rule(name.clone()).map_err(|refusal| {
        let problem = Problem::from(refusal);
        let shown: String = name.chars().take(64).collect();
        Problem::new(problem.code(), format!("rule `{shown}`: {}", problem.detail()))
    })
}

pub(crate) fn state_change(change: SessionStateChange) -> Result<StateChange, Problem> {
    let (hold, state) = change.read()?;
    check_state(state.as_ref().map_or(0, |state| state.len()))?;
    Ok(StateChange { hold, state })
}

/// A request to settle leases.
pub(crate) struct SettleCommand {
    pub leases: ParsedTokens,
    pub settlement: Settlement,
    /// Changes together with the leases.
    pub state: Option<StateChange>,
}

pub(crate) fn settle_command(mut request: SettleRequest) -> Result<SettleCommand, Problem> {
    check_list("leases", request.leases.len(), limits::SETTLE_BATCH_MAX)?;
    let settlement = request.settlement()?;
    let state = request.session_state.map(state_change).transpose()?;
    let leases = parse_tokens(request.leases);
    if state.is_some()
        && let Some((_, Err(refusal))) = leases.iter().find(|(_, token)| token.is_err())
    {
        return Err(refusal.clone().into());
    }
    Ok(SettleCommand { leases, settlement, state })
}

/// For fuzzing: decodes the bytes as every request. Nothing may panic.
pub fn try_every_request(bytes: &[u8]) {
    fn read<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
        crate::extract::from_json(bytes).ok()
    }
    if let Some(settings) = read::<settings::QueueSettings>(bytes) {
        let _ = settings.apply_to(malote_model::QueueSpec::default()).map(|spec| spec.check());
    }
    if let Some(message) = read::<message::NewMessage>(bytes) {
        let _ = message.into_message();
    }
    if let Some(batch) = read::<message::MessageBatch>(bytes) {
        batch.messages.into_iter().for_each(|message| drop(message.into_message()));
    }
    if let Some(settle) = read::<SettleRequest>(bytes) {
        let _ = settle_command(settle);
    }
    if let Some(receive) = read::<receive::ReceiveRequest>(bytes) {
        let _ = check_receive(&receive);
    }
    if let Some(subscribe) = read::<topic::SubscribeRequest>(bytes) {
        let _ = subscribe.spec.apply_to(malote_model::QueueSpec::default());
        subscribe.rules.into_iter().flatten().for_each(|rule| drop(named_rule(rule)));
    }
    if let Some(rule) = read::<rule::RuleBody>(bytes) {
        let _ = rule.rule("r".into());
    }
    if let Some(test) = read::<rule::RuleTest>(bytes)
        && let Ok((rule, message)) = test.parts()
        && let Ok(mut message) = message.into_message()
    {
        let at = malote_model::Timestamp(0);
        if rule.filter.matches(&malote_model::Facts::new(&message, at)) {
            rule.act(&mut message, at);
        }
    }
    if let Some(settings) = read::<topic::TopicSettings>(bytes) {
        let _ = settings.apply_to(malote_model::TopicSpec::default()).map(|spec| spec.check());
    }
    if let Some(work) = read::<TransactionRequest>(bytes) {
        work.send.into_iter().for_each(|message| drop(message.into_message()));
        let items = work.settle.into_iter().flat_map(|of| of.items);
        items.for_each(|item| drop(settle_command(item)));
        work.state.into_iter().for_each(|of| drop(state_change(of.change)));
    }
    read::<receive::ReceiveDeferredRequest>(bytes);
    read::<receive::CancelRequest>(bytes);
    read::<settle::RenewRequest>(bytes);
    read::<session::AcceptRequest>(bytes);
    read::<session::HoldRequest>(bytes);
    read::<dead_letter::RedriveRequest>(bytes);
    read::<dead_letter::ResendRequest>(bytes);
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_request_panics() {
        let seeds = [
            r#"{"messages":[{"body":{"a":[1,"x"]},"at":"2030-01-01T00:00:00Z","properties":{"p":{"$type":"uuid","value":"x"}}}]}"#,
            r#"{"leases":["00"],"outcome":"abandon","delay_ms":1,"session_state":{"token":"x","state_base64":"AA=="}}"#,
            r#"{"sessions":["a"],"dead_letter":{"queue":"x"},"failed_max":null,"lock_ms":1}"#,
            r#"{"spec":{"ttl_ms":5},"rules":[{"name":"r","filter":{"sql":{"text":"a > @b","parameters":{"@b":1}}},"action":"SET a = 1"}]}"#,
            r#"{"filter":{"headers":{"match":"any","values":{"a":null}}},"action":"REMOVE a","message":{"properties":{"a":1}}}"#,
            r#"{"send":[{"topic":"t","body":"x"}],"settle":[{"queue":"q","items":[{"leases":["0"],"outcome":"complete"}]}],"state":[{"queue":"q","change":{"token":"0"}}]}"#,
        ];
        let mut state = 88_172_645_463_325_252_u64;
        for round in 0..10_000 {
            let mut bytes = seeds[round % seeds.len()].as_bytes().to_vec();
            for _ in 0..1 + round % 3 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = (state >> 20) as usize % bytes.len();
                match state % 4 {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, (state >> 40) as u8),
                    _ => bytes[at] = (state >> 40) as u8,
                }
            }
            super::try_every_request(&bytes);
        }
    }

    #[test]
    fn settlements_without_leases_or_with_a_wrong_token_are_refused() {
        for bad in [
            r#"{"leases":[],"outcome":"complete"}"#,
            r#"{"leases":["x"],"outcome":"complete","session_state":{"token":"x"}}"#,
        ] {
            assert!(super::settle_command(serde_json::from_str(bad).unwrap()).is_err(), "{bad}");
        }
    }
}
