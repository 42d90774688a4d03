use super::*;

fn message(properties: &[(&str, Value)]) -> Message {
    Message {
        properties: properties.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect(),
        ..Message::default()
    }
}

fn facts<'a>(message: &'a Message, key: &'a str) -> Facts<'a> {
    Facts { message, key, at: Timestamp(0) }
}

/// RabbitMQ's answers, and what follows from its rules.
#[test]
fn patterns_fit_by_words() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("#", &["", "a", ".", "a.b.c", "..."], &[]),
        ("", &[""], &["a", "."]),
        ("*", &["a", "*", "#"], &["", ".", "a.b"]),
        ("*.*", &[".", "a.b", "a.", ".b"], &["", "a", "a.b.c", ".."]),
        (".", &["."], &["", "a", "a.b", ".."]),
        ("a*", &["a*"], &["ab", "a", "a."]),
        ("a#", &["a#"], &["ab", "a", "a.b"]),
        ("#.#", &["", "a", "a.b", "."], &[]),
        ("#.#.#", &["", "a", "a.b", "a.b.c.d"], &[]),
        ("#.*", &["a", ".", "a.b"], &[""]),
        ("*.#", &["a", ".", "a.b"], &[""]),
        ("#.*.#", &["a", "a.b", "."], &[""]),
        ("#.*.#.*", &["a.b", ".", "a.b.c"], &["", "a"]),
        ("a.#", &["a", "a.", "a.b", "a.b.c"], &["", "b", "b.a", "ab"]),
        ("#.a", &["a", ".a", "b.a", "a.a.a"], &["", "a.b", "ba"]),
        ("a.#.b", &["a.b", "a.x.b", "a.b.b", "a.b.a.b"], &["a", "b", "a.b.a", "a.x"]),
        ("a.*.b", &["a.x.b", "a..b", "a.b.b"], &["a.b", "a.x.y.b"]),
        ("#.a.#", &["a", "x.a", "a.x", "x.y.a.z"], &["", "b", "x.y"]),
        ("#.a.#.b.#", &["a.b", "x.a.y.b.z", "b.a.b"], &["b.a", "a", "b"]),
        ("#.a.b.#.a.b", &["a.b.a.b", "a.b.x.a.b", "a.a.b.a.b"], &["a.b", "a.b.a", "a.b.b"]),
        ("*.orange.*", &["quick.orange.rabbit"], &["quick.orange.male.rabbit", "orange"]),
        ("lazy.#", &["lazy", "lazy.brown.fox"], &["quick.lazy"]),
        ("Ünï.*", &["Ünï.x"], &["ünï.x"]),
    ];
    let empty = Message::default();
    for (pattern, hits, misses) in cases {
        let filter = Filter::Pattern((*pattern).into());
        for key in *hits {
            assert!(filter.matches(&facts(&empty, key)), "{pattern:?} must take {key:?}");
        }
        for key in *misses {
            assert!(!filter.matches(&facts(&empty, key)), "{pattern:?} must not take {key:?}");
        }
    }
}

#[test]
fn headers_by_their_mode() {
    use HeadersMatch::{All, AllWithX, Any, AnyWithX};
    let text = |text: &str| Value::String(text.into());
    let message = message(&[
        ("a", Value::I32(1)),
        ("b", text("two")),
        ("x-c", Value::Bool(true)),
        ("n", Value::Null),
        ("f", Value::F32(0.5)),
    ]);
    let one = || Some(Value::U8(1));
    let cases = [
        (All, vec![], true),
        (AllWithX, vec![], true),
        (Any, vec![], false),
        (AnyWithX, vec![], false),
        (All, vec![("a", one())], true),
        (All, vec![("a", None)], true),
        (All, vec![("n", None)], true),
        (All, vec![("n", Some(Value::Null))], true),
        (All, vec![("missing", None)], false),
        (All, vec![("missing", Some(Value::Null))], false),
        (All, vec![("a", Some(Value::F64(1.0)))], false),
        (All, vec![("a", Some(text("1")))], false),
        (All, vec![("A", one())], false),
        (All, vec![("f", Some(Value::F64(0.5)))], true),
        (All, vec![("a", one()), ("b", Some(text("two")))], true),
        (All, vec![("a", one()), ("b", Some(text("three")))], false),
        (Any, vec![("a", one()), ("b", Some(text("three")))], true),
        (Any, vec![("a", Some(Value::I64(2))), ("b", Some(text("three")))], false),
        (Any, vec![("missing", None), ("a", None)], true),
        (All, vec![("x-c", Some(Value::Bool(false)))], true),
        (Any, vec![("x-c", Some(Value::Bool(true)))], false),
        (AllWithX, vec![("x-c", Some(Value::Bool(false)))], false),
        (AllWithX, vec![("x-c", Some(Value::Bool(true))), ("a", None)], true),
        (AnyWithX, vec![("x-c", Some(Value::Bool(true))), ("missing", None)], true),
    ];
    for (mode, values, expected) in cases {
        let values: Vec<_> = values.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        let headers = Headers { mode, values };
        assert_eq!(headers.matches(&facts(&message, "")), expected, "{headers:?}");
    }
}

#[test]
fn correlations_are_ands_of_equalities() {
    let some = |text: &str| Some(text.to_owned());
    let mut message = message(&[("a", Value::I32(1)), ("b", Value::Null)]);
    message.message_id = some("m");
    message.correlation_id = some("c");
    message.to = some("t");
    message.reply_to = some("r");
    message.subject = some("s");
    message.session = Some(SessionId::new("g").unwrap());
    message.reply_to_session = some("rs");
    message.content_type = some("ct");
    let facts = facts(&message, "k");
    assert!(Correlation::default().matches(&facts));
    let values = ["m", "c", "t", "r", "s", "g", "rs", "ct", "k"];
    for (i, value) in values.into_iter().enumerate() {
        let mut one = Correlation::default();
        *one.texts_mut()[i] = some(value);
        assert!(one.matches(&facts), "{one:?}");
        *one.texts_mut()[i] = some("another");
        assert!(!one.matches(&facts), "{one:?}");
    }
    let with = |name: &str, value: Value| {
        let subject = some("s");
        Correlation { subject, properties: vec![(name.into(), value)], ..Correlation::default() }
    };
    assert!(with("a", Value::I64(1)).matches(&facts));
    assert!(!with("a", Value::F64(1.0)).matches(&facts));
    assert!(!with("A", Value::I64(1)).matches(&facts));
    assert!(with("b", Value::Null).matches(&facts));
    assert!(!with("c", Value::Null).matches(&facts));
    let other = Correlation { subject: some("S"), ..with("a", Value::I64(1)) };
    assert!(!other.matches(&facts));
}

#[test]
fn values_are_the_same_whatever_their_width() {
    let same = [
        (Value::I8(-1), Value::I64(-1)),
        (Value::U64(5), Value::I8(5)),
        (Value::F32(0.5), Value::F64(0.5)),
        (Value::F64(f64::NAN), Value::F32(f32::NAN)),
        (Value::F64(0.0), Value::F64(-0.0)),
        (Value::Null, Value::Null),
    ];
    for (a, b) in same {
        assert!(a.same(&b) && b.same(&a), "{a:?} {b:?}");
    }
    let different = [
        (Value::I64(-1), Value::U64(u64::MAX)),
        (Value::I64(1), Value::F64(1.0)),
        (Value::I64(1), Value::Bool(true)),
        (Value::I64(1), Value::String("1".into())),
        (Value::I64(1), Value::Time(1)),
        (Value::Null, Value::Bool(false)),
        (Value::F32(0.1), Value::F64(0.1)),
    ];
    for (a, b) in different {
        assert!(!a.same(&b) && !b.same(&a), "{a:?} {b:?}");
    }
}

#[test]
fn rules_have_bounds() {
    let rule = |name: &str, filter| Rule { name: name.into(), filter, action: None };
    let text = |n: usize| "x".repeat(n);
    rule(&text(512), Filter::All).check().unwrap();
    rule("", Filter::All).check().unwrap_err();
    rule(&text(513), Filter::All).check().unwrap_err();
    rule("r", Filter::Key(text(512))).check().unwrap();
    rule("r", Filter::Key(text(513))).check().unwrap_err();
    rule("r", Filter::Pattern(text(513))).check().unwrap_err();
    let subject = Some(text(513));
    rule("r", Filter::Correlation(Arc::new(Correlation { subject, ..Correlation::default() })))
        .check()
        .unwrap_err();
    let properties = |n: usize, value: &Value| {
        let properties = (0..n).map(|i| (i.to_string(), value.clone())).collect();
        Filter::Correlation(Arc::new(Correlation { properties, ..Correlation::default() }))
    };
    rule("r", properties(256, &Value::Null)).check().unwrap();
    rule("r", properties(257, &Value::Null)).check().unwrap_err();
    rule("r", properties(2, &Value::String(text(40_000)))).check().unwrap_err();
    let mut deep = Value::Null;
    for _ in 0..16 {
        deep = Value::List(vec![deep]);
    }
    rule("r", properties(1, &deep)).check().unwrap();
    rule("r", properties(1, &Value::List(vec![deep]))).check().unwrap_err();
    let twice = vec![("a".to_owned(), None), ("b".to_owned(), None), ("a".to_owned(), None)];
    let headers = Headers { values: twice, ..Headers::default() };
    let refusal = rule("r", Filter::Headers(headers)).check().unwrap_err();
    assert_eq!(refusal.to_string(), "filter: names `a` twice");
    let parameters = (0..257).map(|i| (format!("p{i}"), Value::Null)).collect();
    SqlFilter::new("a = @p1", parameters).unwrap_err();
}

#[test]
fn a_rule_with_an_action_leaves_its_name() {
    let action = Some(SqlAction::new("SET seen = TRUE", vec![]).unwrap());
    let mut copy = message(&[("a", Value::I32(1))]);
    Rule { name: "audit".into(), filter: Filter::All, action }.act(&mut copy, Timestamp(0));
    assert_eq!(copy.properties.get("seen"), Some(&Value::Bool(true)));
    assert_eq!(copy.properties.get("RuleName"), Some(&Value::String("audit".into())));
    let mut copy = message(&[]);
    Rule { name: "audit".into(), filter: Filter::All, action: None }.act(&mut copy, Timestamp(0));
    assert_eq!(copy, message(&[]));
}
