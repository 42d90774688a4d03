//! Compares the router with a scan of all rules, and with the behaviour of other brokers.

use std::collections::BTreeMap;
use std::sync::Arc;

use malote_model::{
    Correlation, Facts, Filter, Headers, HeadersMatch, Message, Rule, SessionId, SqlAction,
    SqlFilter, Timestamp, Value,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::{RouteMatch, TopicRouter};

type Said = Vec<(u8, Option<String>)>;

fn said(hits: &[RouteMatch<'_, u8>]) -> Said {
    hits.iter().map(|hit| (hit.target, hit.rule.map(|rule| rule.name.clone()))).collect()
}

fn routed(router: &TopicRouter<u8>, facts: &Facts<'_>) -> Said {
    let mut hits = Vec::new();
    router.route(facts, &mut hits);
    said(&hits)
}

/// The reference: evaluates every rule.
fn scanned(rules: &BTreeMap<(u8, String), Rule>, facts: &Facts<'_>) -> Said {
    let mut said: Said = Vec::new();
    for ((target, name), rule) in rules {
        if rule.filter.matches(facts) {
            said.push((*target, rule.action.as_ref().map(|_| name.clone())));
        }
    }
    said.sort();
    said.dedup();
    said
}

fn rule(name: &str, filter: Filter) -> Rule {
    Rule { name: name.into(), filter, action: None }
}

fn acting(name: &str, filter: Filter) -> Rule {
    Rule { action: Some(SqlAction::new("SET a = 1", vec![]).unwrap()), ..rule(name, filter) }
}

fn plain(targets: &[u8]) -> Said {
    targets.iter().map(|target| (*target, None)).collect()
}

fn with_key<'a>(message: &'a Message, key: &'a str) -> Facts<'a> {
    Facts { message, key, at: Timestamp(0) }
}

#[test]
fn a_target_gets_one_plain_copy_and_one_for_each_action() {
    let mut router = TopicRouter::new(1);
    router.insert(2, rule("all", Filter::All));
    router.insert(2, rule("key", Filter::Key("k".into())));
    router.insert(2, rule("pattern", Filter::Pattern("#".into())));
    router.insert(2, acting("z", Filter::All));
    router.insert(2, acting("b", Filter::Key("k".into())));
    router.insert(2, acting("never", Filter::None));
    router.insert(1, acting("only", Filter::Key("k".into())));
    router.insert(3, rule("other", Filter::Key("other".into())));
    let message = Message::default();
    let some = |target: u8, name: &str| (target, Some(name.to_owned()));
    let expected = vec![some(1, "only"), (2, None), some(2, "b"), some(2, "z")];
    assert_eq!(routed(&router, &with_key(&message, "k")), expected);
    assert_eq!(routed(&router, &with_key(&message, "x")), vec![(2, None), some(2, "z")]);
    assert_eq!(
        router.rules(2).map(|rule| rule.name.as_str()).collect::<Vec<_>>(),
        ["all", "b", "key", "never", "pattern", "z"]
    );
    assert_eq!(router.targets().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_rule_is_replaced_by_a_rule_of_the_same_name() {
    let mut router = TopicRouter::new(1);
    assert_eq!(router.insert(1, rule("r", Filter::Key("old".into()))), None);
    let before = router.insert(1, rule("r", Filter::Key("new".into())));
    assert_eq!(before, Some(rule("r", Filter::Key("old".into()))));
    let message = Message::default();
    assert_eq!(routed(&router, &with_key(&message, "old")), []);
    assert_eq!(routed(&router, &with_key(&message, "new")), plain(&[1]));
    assert_eq!(router.len(), 1);
    assert_eq!(router.rule(1, "r"), Some(&rule("r", Filter::Key("new".into()))));
    assert_eq!(router.remove(1, "x"), None);
    assert_eq!(router.remove(2, "r"), None);
    assert!(router.remove(1, "r").is_some());
    assert!(router.is_clean());
}

/// Adds the same key, values and patterns for many targets, and removes them one by one.
#[test]
fn many_rules_can_have_the_same_filter() {
    let subject = Some("s".to_owned());
    let same = [
        Filter::All,
        Filter::Key("a.b".into()),
        Filter::Pattern("a.*".into()),
        Filter::Correlation(Arc::new(Correlation {
            subject: subject.clone(),
            ..Correlation::default()
        })),
    ];
    let message = Message { subject, ..Message::default() };
    for filter in same {
        let mut router = TopicRouter::new(7);
        for target in 0..200 {
            router.insert(target, rule("r", filter.clone()));
        }
        for target in 0..200 {
            let left: Vec<u8> = (target..200).collect();
            assert_eq!(routed(&router, &with_key(&message, "a.b")), plain(&left), "{filter:?}");
            assert_eq!(router.remove_target(target), 1);
        }
        assert!(router.is_clean());
    }
}

/// Following every path separately would take practically forever.
#[test]
fn patterns_with_many_hashes_and_long_keys_match_quickly() {
    let mut router = TopicRouter::new(1);
    let pattern = "#.a.".repeat(60);
    router.insert(1, rule("hit", Filter::Pattern(format!("{pattern}#"))));
    router.insert(2, rule("miss", Filter::Pattern(format!("{pattern}b"))));
    let message = Message::default();
    let key = vec!["a"; 250].join(".");
    assert_eq!(routed(&router, &with_key(&message, &key)), plain(&[1]));
}

/// Equal values share a slot, whatever their width; others do not.
#[test]
fn correlation_filters_compare_values() {
    let values = [
        Value::I32(1),
        Value::F64(1.0),
        Value::String("1".into()),
        Value::Bool(true),
        Value::Bytes("1".into()),
        Value::Time(1),
        Value::Uuid([1; 16]),
        Value::Null,
        Value::F64(f64::NAN),
        Value::F64(0.0),
        Value::List(vec![Value::I32(1)]),
        Value::List(vec![Value::I32(2)]),
        Value::Map(vec![]),
        Value::String(String::new()),
    ];
    let mut router = TopicRouter::new(1);
    for (target, value) in (0..).zip(&values) {
        let properties = vec![("v".to_owned(), value.clone())];
        let filter =
            Filter::Correlation(Arc::new(Correlation { properties, ..Correlation::default() }));
        router.insert(target, rule("r", filter));
    }
    let hits = |value: &Value| {
        let properties = [("v".to_owned(), value.clone())].into_iter().collect();
        let message = Message { properties, ..Message::default() };
        routed(&router, &with_key(&message, ""))
    };
    for (target, value) in (0..).zip(&values) {
        assert_eq!(hits(value), plain(&[target]), "{value:?}");
    }
    assert_eq!(hits(&Value::U64(1)), plain(&[0]));
    assert_eq!(hits(&Value::F32(1.0)), plain(&[1]));
    assert_eq!(hits(&Value::F32(f32::NAN)), plain(&[8]));
    assert_eq!(hits(&Value::F64(-0.0)), plain(&[9]));
    assert_eq!(hits(&Value::I32(2)), []);
    assert_eq!(routed(&router, &with_key(&Message::default(), "")), []);
}

fn word() -> impl Strategy<Value = String> {
    select(vec!["a", "b", "", "*", "#", "a*"]).prop_map(str::to_owned)
}

fn key() -> impl Strategy<Value = String> {
    vec(word(), 0..5).prop_map(|words| words.join("."))
}

fn value() -> impl Strategy<Value = Value> {
    select(vec![
        Value::Null,
        Value::I8(1),
        Value::U64(1),
        Value::F32(1.0),
        Value::F64(1.0),
        Value::Bool(true),
        Value::String("a".into()),
        Value::String("1".into()),
    ])
}

fn named() -> impl Strategy<Value = Vec<(String, Value)>> {
    let name = select(vec!["p", "q", "x-r"]);
    vec((name, value()), 0..3).prop_map(|mut values| {
        values.sort_by_key(|(name, _)| *name);
        values.dedup_by_key(|(name, _)| *name);
        values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    })
}

fn text() -> impl Strategy<Value = Option<String>> {
    option::weighted(0.3, select(vec!["a", "b"]).prop_map(str::to_owned))
}

fn correlation() -> impl Strategy<Value = Correlation> {
    (text(), text(), text(), text(), named()).prop_map(
        |(message_id, subject, session, key, properties)| {
            let rest = Correlation::default();
            Correlation { message_id, subject, session, key, properties, ..rest }
        },
    )
}

fn filter() -> impl Strategy<Value = Filter> {
    use HeadersMatch::{All, AllWithX, Any, AnyWithX};
    let headers = (select(vec![All, Any, AllWithX, AnyWithX]), named(), any::<bool>());
    let headers = headers.prop_map(|(mode, values, present)| {
        let value = |value| if present { None } else { Some(value) };
        let values = values.into_iter().map(|(name, v)| (name, value(v))).collect();
        Filter::Headers(Headers { mode, values })
    });
    let sql = select(vec!["p = 1", "q IS NULL", "sys.Label = 'a' OR NOT EXISTS(p)", "q LIKE 'a%'"]);
    prop_oneof![
        1 => Just(Filter::All),
        1 => Just(Filter::None),
        1 => key().prop_map(Filter::Key),
        4 => key().prop_map(Filter::Pattern),
        1 => headers,
        4 => correlation().prop_map(|wanted| Filter::Correlation(Arc::new(wanted))),
        1 => sql.prop_map(|text| Filter::Sql(SqlFilter::new(text, vec![]).unwrap())),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    (text(), text(), text(), option::of(key()), named()).prop_map(
        |(message_id, subject, session, key, properties)| Message {
            message_id,
            subject,
            session: session.map(|session| SessionId::new(&session).unwrap()),
            key,
            properties: properties.into_iter().collect(),
            ..Message::default()
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, u8, Filter, bool),
    Remove(u8, u8),
    RemoveTarget(u8),
    Route(Box<Message>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_u8, 0..4_u8, filter(), any::<bool>())
            .prop_map(|(target, name, filter, acts)| Step::Insert(target, name, filter, acts)),
        2 => (0..4_u8, 0..4_u8).prop_map(|(target, name)| Step::Remove(target, name)),
        1 => (0..4_u8).prop_map(Step::RemoveTarget),
        6 => message().prop_map(|message| Step::Route(Box::new(message))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// After any inserts and removals, a router agrees with a scan, and with a router rebuilt from the rules.
    #[test]
    fn a_router_says_what_a_scan_says(steps in vec(step(), 1..60), seed: u64) {
        let mut router = TopicRouter::new(seed);
        let mut rules: BTreeMap<(u8, String), Rule> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(target, name, filter, acts) => {
                    let name = format!("r{name}");
                    let rule = if acts { acting(&name, filter) } else { rule(&name, filter) };
                    let before = router.insert(target, rule.clone());
                    prop_assert_eq!(before, rules.insert((target, name), rule));
                }
                Step::Remove(target, name) => {
                    let name = format!("r{name}");
                    prop_assert_eq!(router.remove(target, &name), rules.remove(&(target, name)));
                }
                Step::RemoveTarget(target) => {
                    let before = rules.len();
                    rules.retain(|(of, _), _| *of != target);
                    prop_assert_eq!(router.remove_target(target), before - rules.len());
                }
                Step::Route(message) => {
                    let facts = Facts::new(&message, Timestamp(0));
                    prop_assert_eq!(routed(&router, &facts), scanned(&rules, &facts));
                    let mut again = TopicRouter::new(!seed);
                    for target in router.targets().collect::<Vec<_>>().into_iter().rev() {
                        router.rules(target).for_each(|rule| drop(again.insert(target, rule.clone())));
                    }
                    prop_assert_eq!(routed(&again, &facts), scanned(&rules, &facts));
                }
            }
            prop_assert_eq!(router.len(), rules.len());
            let compare = |rule: &&Rule| matches!(rule.filter, Filter::Correlation(_));
            prop_assert_eq!(router.correlations(), rules.values().filter(compare).count());
        }
        for target in 0..4 {
            router.remove_target(target);
        }
        prop_assert!(router.is_clean());
    }

    /// Compares the trie with the definition of a pattern.
    #[test]
    fn a_pattern_fits_in_the_trie_as_it_does_alone(pattern in key(), key in key()) {
        let mut router = TopicRouter::new(1);
        router.insert(1, rule("r", Filter::Pattern(pattern.clone())));
        let message = Message::default();
        let facts = with_key(&message, &key);
        let alone = Filter::Pattern(pattern).matches(&facts);
        prop_assert_eq!(!routed(&router, &facts).is_empty(), alone);
    }
}
