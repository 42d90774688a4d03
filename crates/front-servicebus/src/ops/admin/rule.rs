//! Rules of subscriptions.

use axum::response::Response;
use malote_engine::QueueFacts;
use malote_model::{QueueName, Rule, TopicName, limits};

use super::atom::{self, AtomEntry, time};
use super::error::{AdminAction, AdminError, AdminResult};
use super::{AdminCall, none_if_missing, subscription};
use crate::wire::rule_xml;
use crate::wire::xml::{Element, escaped};

/// Reads a `RuleDescription`, or the rule of a new subscription.
pub(super) fn read(element: &Element) -> AdminResult<Rule> {
    let name = element.text_of("Name").map(str::trim).filter(|name| !name.is_empty());
    named(name.unwrap_or("$Default"), element)
}

fn named(name: &str, element: &Element) -> AdminResult<Rule> {
    rule_xml::read(name, element).map_err(|why| AdminError::bad(format!("Invalid rule: {why}.")))
}

/// The subscription that the rules belong to.
async fn owner(
    call: &AdminCall<'_>,
    operation: &'static str,
    topic: &str,
    name: &str,
) -> AdminResult<(TopicName, Box<QueueFacts>)> {
    let found = subscription::find(call, AdminAction::Below(operation), topic, name).await?;
    let found = found.and_then(|facts| Some((facts.name.subscription_of()?.0, facts)));
    found.ok_or_else(|| subscription::missing(topic, name))
}

/// Reads the rules in order of their names, page by page, until `each` returns false.
async fn walk(
    call: &AdminCall<'_>,
    topic: &TopicName,
    queue: &QueueName,
    mut each: impl FnMut(Rule) -> bool,
) -> AdminResult<()> {
    let (page, mut after) = (limits::RECEIVE_BATCH_MAX, None);
    loop {
        let engine = &call.admin.front.engine;
        let some =
            engine.rules(topic.clone(), Some(queue.clone().into()), after.take(), page).await?;
        let more = some.len() >= page;
        after = some.last().map(|last| (last.target.clone(), last.rule.name.clone()));
        if !some.into_iter().all(|binding| each(binding.rule)) || !more {
            return Ok(());
        }
    }
}

/// Finds a rule by name; case-insensitive if the name is unambiguous.
async fn find(
    call: &AdminCall<'_>,
    topic: &TopicName,
    queue: &QueueName,
    name: &str,
) -> AdminResult<Option<Rule>> {
    let (mut exact, mut alike) = (None, Vec::new());
    walk(call, topic, queue, |rule| {
        if rule.name == name {
            exact = Some(rule);
        } else if rule.name.eq_ignore_ascii_case(name) && alike.len() < 2 {
            alike.push(rule);
        }
        exact.is_none()
    })
    .await?;
    Ok(exact.or_else(|| alike.pop().filter(|_| alike.is_empty())))
}

pub(super) async fn get(
    call: &AdminCall<'_>,
    topic: &str,
    of: &str,
    name: &str,
) -> AdminResult<AtomEntry> {
    let (topic, facts) = owner(call, "GetRule", topic, of).await?;
    let rule = find(call, &topic, &facts.name, name).await?;
    let rule = rule.ok_or_else(|| AdminError::not_found(name))?;
    Ok(entry(&facts, &rule))
}

pub(super) async fn list(call: &AdminCall<'_>, topic: &str, of: &str) -> AdminResult<Response> {
    let (topic, facts) = owner(call, "EnumerateRules", topic, of).await?;
    let (mut passed, mut entries, mut more) = (0, Vec::new(), false);
    walk(call, &topic, &facts.name, |rule| {
        if passed < call.page.skip {
            passed += 1;
        } else if entries.len() < call.page.top {
            entries.push(entry(&facts, &rule));
        } else {
            more = true;
        }
        !more
    })
    .await?;
    let path = format!("{}/Rules", facts.name);
    Ok(atom::feed(&call.base_url, &path, "Rules", call.now(), call.page, (entries, more)))
}

pub(super) async fn put(
    call: &AdminCall<'_>,
    topic: &str,
    of: &str,
    name: &str,
    element: &Element,
) -> AdminResult<AtomEntry> {
    let (topic, facts) = owner(call, "CreateOrUpdateRule", topic, of).await?;
    let (engine, queue) = (&call.admin.front.engine, &facts.name);
    let rule = match find(call, &topic, queue, name).await? {
        None if call.update => return Err(AdminError::not_found(name)),
        Some(old) if call.update => {
            let rule = named(&old.name, element)?;
            engine.rebind(topic, queue.clone(), rule.clone()).await?;
            rule
        }
        Some(_) => return Err(AdminError::exists(name)),
        None => {
            let rule = named(name, element)?;
            if !engine.bind(topic, queue.clone(), rule.clone()).await? {
                return Err(AdminError::exists(name));
            }
            rule
        }
    };
    Ok(entry(&facts, &rule))
}

pub(super) async fn delete(
    call: &AdminCall<'_>,
    topic: &str,
    of: &str,
    name: String,
) -> AdminResult<()> {
    let (topic, facts) = owner(call, "DeleteRule", topic, of).await?;
    let rule = find(call, &topic, &facts.name, &name).await?;
    let rule = rule.ok_or_else(|| AdminError::not_found(&name))?;
    match call.admin.front.engine.unbind(topic, facts.name, rule.name).await {
        Ok(()) => Ok(()),
        Err(error) => {
            none_if_missing::<()>(error)?;
            Err(AdminError::not_found(name))
        }
    }
}

/// The creation time of a rule is not stored; that of its subscription is used.
fn entry(of: &QueueFacts, rule: &Rule) -> AtomEntry {
    let mut description = String::new();
    rule_xml::write(&mut description, rule);
    description.push_str(&format!("<CreatedAt>{}</CreatedAt>", escaped(&time(of.created_at))));
    AtomEntry {
        path: format!("{}/Rules/{}", of.name, rule.name),
        title: rule.name.clone(),
        created_at: of.created_at,
        updated_at: of.created_at,
        kind: "RuleDescription",
        description,
    }
}
