//! Tables of actions with their effects on a message.

use super::*;

/// The changes that an action makes to the message.
fn after(action: &str) -> String {
    let parameters = vec![("@n".to_owned(), Value::U16(7))];
    let action = SqlAction::new(action, parameters);
    let action = action.unwrap_or_else(|refusal| panic!("{refusal}"));
    let before = message();
    let mut message = message();
    action.apply(&mut message, Timestamp(5000));
    let mut changes = Vec::new();
    for (name, value) in message.properties.iter() {
        // A NaN differs from itself, and no action here changes it.
        if name != "nan" && before.properties.get(name) != Some(value) {
            changes.push(format!("{name} = {value:?}"));
        }
    }
    for (name, _) in before.properties.iter() {
        if message.properties.get(name).is_none() {
            changes.push(format!("-{name}"));
        }
    }
    let fields = |m: &Message| {
        let session = m.session.as_ref().map(ToString::to_string);
        let key = (m.key.clone(), m.ttl_ms.map(|ms| ms.to_string()), session);
        [
            ("message_id", m.message_id.clone()),
            ("correlation_id", m.correlation_id.clone()),
            ("subject", m.subject.clone()),
            ("to", m.to.clone()),
            ("reply_to", m.reply_to.clone()),
            ("reply_to_session", m.reply_to_session.clone()),
            ("content_type", m.content_type.clone()),
            ("key", key.0),
            ("ttl_ms", key.1),
            ("session", key.2),
        ]
    };
    for ((name, new), (_, old)) in fields(&message).into_iter().zip(fields(&before)) {
        if new != old {
            changes.push(format!("{name}: {}", new.unwrap_or_else(|| "none".into())));
        }
    }
    changes.join(", ")
}

#[test]
fn actions_change_the_copy() {
    let cases = [
        ("SET new = 1", "new = I64(1)"),
        ("set new = 'a';", "new = String(\"a\")"),
        ("SET new = 1; SET other = new + 1", "new = I64(1), other = I64(2)"),
        ("SET a = 1 SET b = 2", "a = I64(1), b = I64(2)"),
        ("SET a = 1, SET b = 2", "a = I64(1), b = I64(2)"),
        ("SET a = 1; REMOVE a", ""),
        ("REMOVE color", "-color"),
        ("REMOVE COLOR; REMOVE missing", "-color"),
        ("REMOVE user.[HR-EmployeeID]", "-HR-EmployeeID"),
        ("SET COLOR = 'red'", "color = String(\"red\")"),
        ("SET [with space] = 'x'", "with space = String(\"x\")"),
        // Numbers keep their width, if the result fits.
        ("SET Size = Size + 1", "Size = I32(11)"),
        ("SET small = 127", "small = I8(127)"),
        ("SET small = 128", "small = I64(128)"),
        ("SET single = 2", "single = F32(2.0)"),
        ("SET single = 2.5", "single = F32(2.5)"),
        ("SET price = 3", "price = F64(3.0)"),
        ("SET Size = 2.5", "Size = F64(2.5)"),
        ("SET Size = 'ten'", "Size = String(\"ten\")"),
        ("SET new = big", "new = U64(18446744073709551615)"),
        ("SET new = -big", "new = Null"),
        // A copy is exact.
        ("SET new = small", "new = I8(-3)"),
        ("SET new = list", "new = List([I32(1)])"),
        ("SET new = raw", "new = Bytes(b\"ab\")"),
        ("SET new = sys.Label", "new = String(\"red bus\")"),
        ("SET new = sys.EnqueuedTimeUtc", "new = Time(5000)"),
        ("SET new = p('color') + '!'", "new = String(\"blue!\")"),
        ("SET new = TRUE", "new = Bool(true)"),
        ("SET new = @n", "new = I64(7)"),
        ("SET new = guid", "new = Uuid([7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7])"),
        // Unknown becomes null.
        ("SET new = missing", "new = Null"),
        ("SET color = NULL", "color = Null"),
        ("SET new = 1 / 0", "new = Null"),
        // Fields.
        ("SET sys.Label = 'x'", "subject: x"),
        ("SET sys.Subject = color", "subject: blue"),
        ("SET sys.To = 'a'; SET sys.ReplyTo = 'b'", "to: a, reply_to: b"),
        ("SET sys.MessageId = 'id'", "message_id: id"),
        ("SET sys.CorrelationId = sys.MessageId", "correlation_id: m-1"),
        ("SET sys.ReplyToSessionId = 'z'", "reply_to_session: z"),
        ("SET sys.SessionId = 'z'", "session: z"),
        ("SET sys.ContentType = 'text/plain'", "content_type: text/plain"),
        ("SET sys.PartitionKey = 'pk'", "key: pk"),
        ("SET sys.TimeToLive = 5", "ttl_ms: 5"),
        ("SET sys.Label = Size", "subject: 10"),
        ("SET sys.Label = price", "subject: 2.5"),
        ("SET sys.Label = flag", "subject: true"),
        ("SET sys.Label = guid", "subject: 07070707-0707-0707-0707-070707070707"),
        ("SET sys.Label = NULL", "subject: none"),
        ("REMOVE sys.Label; REMOVE sys.To", "subject: none, to: none"),
        ("REMOVE sys.SessionId", "session: none"),
        ("REMOVE sys.TimeToLive", "ttl_ms: none"),
        // A value that a field cannot hold leaves the field unchanged.
        ("SET sys.MessageId = NULL", ""),
        ("SET sys.Label = list", ""),
        ("SET sys.Label = raw", ""),
        ("SET sys.Label = when", ""),
        ("SET sys.Label = long", ""),
        ("SET sys.SessionId = ''", ""),
        ("SET sys.SessionId = long", ""),
        ("SET sys.TimeToLive = -1", ""),
        ("SET sys.TimeToLive = 'x'", ""),
        ("SET sys.TimeToLive = big", ""),
    ];
    for (action, expected) in cases {
        assert_eq!(after(action), expected, "{action}");
    }
}

#[test]
fn wrong_actions_are_refused() {
    let cases = [
        ("", "action: at character 1, SET or REMOVE is expected, not the end"),
        (";", "action: at character 1, SET or REMOVE is expected, not `;`"),
        ("a = 1", "action: at character 1, SET or REMOVE is expected, not `a`"),
        ("SET a", "action: at character 6, `=` is expected, not the end"),
        ("SET a =", "action: at character 8, a value or a condition is expected, not the end"),
        (
            "SET 'a' = 1",
            "action: at character 5, the name of a property is expected, not the text 'a'",
        ),
        ("SET a = 1 2", "action: at character 11, SET or REMOVE is expected, not 2"),
        ("SET a = 1;;", "action: at character 11, SET or REMOVE is expected, not `;`"),
        ("SET a = b = 1", "action: at character 11, SET or REMOVE is expected, not `=`"),
        ("SET a = (b = 1)", "action: at character 9, a value is expected, not a condition"),
        ("REMOVE", "action: at character 7, the name of a property is expected, not the end"),
        (
            "REMOVE sys.MessageId",
            "action: at character 8, a message cannot be without its id: set another",
        ),
        (
            "SET sys.EnqueuedTimeUtc = 1",
            "action: at character 5, this system property cannot be changed by an action",
        ),
        (
            "SET sys.DeliveryCount = 1",
            "action: at character 5, this system property cannot be changed by an action",
        ),
    ];
    for (text, expected) in cases {
        let refusal = SqlAction::new(text, vec![]).unwrap_err();
        assert_eq!(refusal.to_string(), expected, "{text}");
    }
    let long = format!("SET a = '{}'", "x".repeat(1024));
    let refusal = SqlAction::new(&long, vec![]).unwrap_err();
    assert_eq!(refusal.to_string(), "action: must have at most 1024 characters");
}
