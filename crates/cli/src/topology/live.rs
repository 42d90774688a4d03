//! Reads the objects of the server.

use malote_model::{QueueName, TopicName};
use malote_wire_native::queue::QueueInfo;

use super::file::{fields_of, normal_rule};
use super::{Subscription, Topic, Topology};
use crate::api::Api;

/// All objects that a file can describe. Exclusive queues are left out: they exist as long as their connection.
pub(super) async fn read(api: &Api) -> anyhow::Result<Topology> {
    let mut all = Topology::default();
    for topic in api.topics().await? {
        let spec = fields_of(&topic.spec)?;
        all.topics.insert(topic.name, Topic { spec, ..Topic::default() });
    }
    for QueueInfo { name, spec, .. } in api.queues().await? {
        if spec.exclusive == Some(true) {
            continue;
        }
        let spec = fields_of(&spec)?;
        let queue = QueueName::new(&name)?;
        match queue.subscription_of() {
            None => drop(all.queues.insert(name, spec)),
            Some((topic, subscription)) => {
                // The caller may lack the permission to see the topic.
                if let Some(topic) = all.topics.get_mut(topic.as_str()) {
                    let entry = Subscription { spec, ..Subscription::default() };
                    topic.subscriptions.insert(subscription.to_owned(), entry);
                }
            }
        }
    }
    for (name, topic) in &mut all.topics {
        let name = TopicName::new(name)?;
        // Rules that lead to another topic are not part of a topology file.
        let rules = api.rules(&name, None).await?;
        for bound in rules.into_iter().filter(|bound| bound.to_topic.is_none()) {
            let queue = QueueName::new(&bound.queue)?;
            let rules = match queue.subscription_of().filter(|(of, _)| *of == name) {
                Some((_, subscription)) => {
                    &mut topic.subscriptions.entry(subscription.to_owned()).or_default().rules
                }
                None if all.queues.contains_key(&bound.queue)
                    || queue.subscription_of().is_some() =>
                {
                    topic.bindings.entry(bound.queue).or_default()
                }
                // An exclusive queue.
                None => continue,
            };
            let name = bound.rule.name.clone();
            rules.insert(name, normal_rule(bound.rule.body())?);
        }
    }
    Ok(all)
}
