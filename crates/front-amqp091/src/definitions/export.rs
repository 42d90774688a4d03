//! Writes the definitions of the broker, or of one virtual host.

use malote_engine::{EngineError, TopicFacts};
use malote_model::limits::LIST_MAX;

use super::topology::{binding_definition, exchange_definition, queue_definition};
use super::{
    BindingDefinition, Definitions, GlobalParameterDefinition, ParameterDefinition,
    PermissionDefinition, PolicyDefinition, TopicPermissionDefinition, UserDefinition,
    VhostDefinition,
};
use crate::Front;
use crate::administration::OPERATOR_POLICY;
use crate::conn::handshake::VERSION;
use crate::names::VirtualHost;
use crate::users::{StoredPassword, UserEntry};

impl UserDefinition {
    pub(crate) fn of(user: UserEntry) -> Self {
        let (password_hash, hashing_algorithm, malote_password_hash) = match user.password {
            StoredPassword::None => Default::default(),
            StoredPassword::Rabbitmq { hash, algorithm } => (hash, algorithm, None),
            StoredPassword::Native(hash) => (String::new(), Default::default(), Some(hash)),
        };
        Self {
            name: user.name,
            password_hash,
            hashing_algorithm,
            tags: user.tags,
            limits: serde_json::Map::new(),
            password: None,
            malote_password_hash,
        }
    }
}

impl Front {
    /// The definitions of the broker; of one virtual host, if it is given. The answer grows with the number of queues,
    /// exchanges and bindings, which are read page by page.
    pub async fn export_definitions(
        &self,
        vhost: Option<&str>,
    ) -> Result<Definitions, EngineError> {
        let host = vhost.map(VirtualHost::new);
        let within = |name: &str| host.as_ref().is_none_or(|host| host.owns(name));
        let mut all = self.export_metadata(vhost);
        let mut after = None;
        loop {
            let page = self.engine.list_page(after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            let page = page.iter().filter(|facts| within(facts.name.as_str()));
            all.queues.extend(page.filter_map(queue_definition));
        }
        let mut after = None;
        loop {
            let page = self.engine.topics_page(after).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            for facts in page.iter().filter(|facts| within(facts.name.as_str())) {
                all.exchanges.extend(exchange_definition(facts));
                self.export_bindings(facts, &mut all.bindings).await?;
            }
        }
        // Bindings of queues that are not exported.
        let kept: std::collections::HashSet<(Option<String>, String)> =
            all.queues.iter().map(|queue| (queue.vhost.clone(), queue.name.clone())).collect();
        all.bindings.retain(|binding| {
            let key = (binding.vhost.clone(), binding.destination.clone());
            binding.destination_type != super::DestinationKind::Queue || kept.contains(&key)
        });
        if vhost.is_some() {
            all.queues.iter_mut().for_each(|queue| queue.vhost = None);
            all.exchanges.iter_mut().for_each(|exchange| exchange.vhost = None);
            all.bindings.iter_mut().for_each(|binding| binding.vhost = None);
        }
        Ok(all)
    }

    async fn export_bindings(
        &self,
        source: &TopicFacts,
        bindings: &mut Vec<BindingDefinition>,
    ) -> Result<(), EngineError> {
        if source.rules == 0 {
            return Ok(());
        }
        let mut after = None;
        loop {
            let page = self.engine.rules(source.name.clone(), None, after, LIST_MAX).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some((last.target.clone(), last.rule.name.clone()));
            bindings.extend(page.iter().filter_map(|one| binding_definition(source, one)));
        }
    }

    /// Everything but queues, exchanges and bindings.
    fn export_metadata(&self, vhost: Option<&str>) -> Definitions {
        let metadata = self.metadata.current();
        let within = |name: &String| vhost.is_none_or(|vhost| vhost == name);
        let parameters = metadata.parameters.iter().filter(|((_, host, _), _)| within(host));
        let mut parameters: Vec<ParameterDefinition> = parameters
            .map(|((component, host, name), value)| ParameterDefinition {
                value: value.clone(),
                vhost: Some(host.clone()),
                component: component.clone(),
                name: name.clone(),
            })
            .collect();
        let operator = metadata.operator_policies.iter().filter(|((host, _), _)| within(host));
        parameters.extend(operator.map(|((host, name), policy)| ParameterDefinition {
            value: policy.value().into(),
            vhost: Some(host.clone()),
            component: OPERATOR_POLICY.to_owned(),
            name: name.clone(),
        }));
        let policies = metadata.policies.iter().filter(|((host, _), _)| within(host));
        let policies = policies.map(|((host, name), policy)| PolicyDefinition {
            vhost: Some(host.clone()),
            name: name.clone(),
            policy: policy.value(),
        });
        let part =
            Definitions { parameters, policies: policies.collect(), ..Definitions::default() };
        if vhost.is_some() {
            return Definitions { rabbit_version: VERSION.to_owned(), ..part };
        }
        let users = self.users.list();
        let (mut permissions, mut topic_permissions) = (Vec::new(), Vec::new());
        for user in &users {
            permissions.extend(user.permissions.iter().map(|one| PermissionDefinition {
                user: user.name.clone(),
                vhost: one.vhost.clone(),
                configure: one.configure.to_string(),
                write: one.write.to_string(),
                read: one.read.to_string(),
            }));
            let topics = user.topic_permissions.iter();
            topic_permissions.extend(topics.map(|one| TopicPermissionDefinition {
                user: user.name.clone(),
                vhost: one.vhost.clone(),
                exchange: one.exchange.clone(),
                write: one.write.to_string(),
                read: one.read.to_string(),
            }));
        }
        let global_parameters = metadata.global_parameters.iter().map(|(name, value)| {
            GlobalParameterDefinition { name: name.clone(), value: value.clone() }
        });
        let vhosts = self.vhost_names().into_iter().map(|name| {
            let facts = self.vhost_facts(&name);
            let metadata =
                serde_json::json!({ "description": facts.description, "tags": facts.tags });
            VhostDefinition {
                name,
                description: facts.description,
                tags: facts.tags,
                default_queue_type: facts.default_queue_type,
                metadata: metadata.as_object().cloned().unwrap_or_default(),
            }
        });
        Definitions {
            rabbit_version: VERSION.to_owned(),
            rabbitmq_version: VERSION.to_owned(),
            product_name: "RabbitMQ".to_owned(),
            product_version: VERSION.to_owned(),
            users: Some(users.into_iter().map(UserDefinition::of).collect()),
            vhosts: Some(vhosts.collect()),
            permissions: Some(permissions),
            topic_permissions: Some(topic_permissions),
            global_parameters: Some(global_parameters.collect()),
            ..part
        }
    }
}
