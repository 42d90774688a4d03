//! Addresses of links. Clients write `name`, `/name`, `sb://host/name` or `amqps://host:port/name`. Reserved segments
//! are case-insensitive.

use malote_model::ids::{DEAD_LETTER_SEGMENT, SUBSCRIPTION_SEGMENT};

const MANAGEMENT: &str = "$management";
const TRANSFER: &str = "$transfer";
const CBS: &str = "$cbs";

/// What an address names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// The node for tokens.
    Cbs,
    /// The transaction coordinator; it has no address.
    Coordinator,
    /// A temporary queue; it has no address yet.
    Temporary,
    /// The management node of an entity.
    Management(EntityPath),
    /// A queue, topic or subscription, or its dead letters.
    Entity(EntityPath),
}

/// The address of an entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityPath {
    /// The name without reserved suffixes. `Subscriptions` has its canonical case.
    pub name: String,
    /// The dead-letter queue of the entity.
    pub dead_letters: bool,
    /// The transfer dead-letter queue of the entity. It is always empty, because forwarding is part of the send.
    pub transfer: bool,
}

impl Node {
    pub fn parse(address: &str) -> Node {
        let mut segments: Vec<&str> = path_of(address).split('/').collect();
        if let [only] = segments[..]
            && only.eq_ignore_ascii_case(CBS)
        {
            return Node::Cbs;
        }
        let mut end = |segment: &str| {
            let found = segments.len() > 1
                && segments.last().is_some_and(|last| last.eq_ignore_ascii_case(segment));
            if found {
                segments.pop();
            }
            found
        };
        let management = end(MANAGEMENT);
        let dead_letters = end(DEAD_LETTER_SEGMENT);
        let transfer = end(TRANSFER);
        if let [.., _, middle, _] = &mut segments[..]
            && middle.eq_ignore_ascii_case(SUBSCRIPTION_SEGMENT)
        {
            *middle = SUBSCRIPTION_SEGMENT;
        }
        let path = EntityPath { name: segments.join("/"), dead_letters, transfer };
        if management { Node::Management(path) } else { Node::Entity(path) }
    }
}

/// An address without scheme and host.
pub fn path_of(address: &str) -> &str {
    let path = match address.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => address,
    };
    path.trim_matches('/')
}

impl std::fmt::Display for EntityPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        let ends = [(self.transfer, TRANSFER), (self.dead_letters, DEAD_LETTER_SEGMENT)];
        ends.iter().filter(|(is, _)| *is).try_for_each(|(_, end)| write!(f, "/{end}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(address: &str) -> String {
        match Node::parse(address) {
            Node::Cbs => "cbs".into(),
            Node::Coordinator | Node::Temporary => unreachable!("has no address"),
            Node::Management(path) => format!("management of {path}"),
            Node::Entity(path) => path.to_string(),
        }
    }

    #[test]
    fn addresses_are_parsed_in_all_their_spellings() {
        for (address, is) in [
            ("orders", "orders"),
            ("/orders/", "orders"),
            ("a/b/c", "a/b/c"),
            ("amqps://localhost:5672/orders", "orders"),
            ("sb://host/a/b", "a/b"),
            ("$cbs", "cbs"),
            ("amqp://h/$CBS", "cbs"),
            ("orders/$management", "management of orders"),
            ("orders/$DeadLetterQueue", "orders/$deadletterqueue"),
            ("orders/$DeadLetterQueue/$management", "management of orders/$deadletterqueue"),
            ("orders/$Transfer/$DeadLetterQueue", "orders/$transfer/$deadletterqueue"),
            ("sales/subscriptions/audit", "sales/Subscriptions/audit"),
            ("sales/SUBSCRIPTIONS/audit/$management", "management of sales/Subscriptions/audit"),
            ("$management", "$management"),
            ("", ""),
            ("sb://host", ""),
        ] {
            assert_eq!(shown(address), is, "{address}");
        }
    }
}
