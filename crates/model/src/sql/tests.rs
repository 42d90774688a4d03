//! Tables of filters with their results for one message, and of invalid texts with their errors.

mod actions;

use super::*;
use crate::ids::{SessionId, Timestamp};
use crate::message::{Message, When};

fn message() -> Message {
    let text = |text: &str| Value::String(text.into());
    let properties = [
        ("color", text("blue")),
        ("Size", Value::I32(10)),
        ("small", Value::I8(-3)),
        ("big", Value::U64(u64::MAX)),
        ("price", Value::F64(2.5)),
        ("single", Value::F32(0.1)),
        ("nan", Value::F64(f64::NAN)),
        ("flag", Value::Bool(true)),
        ("off", Value::Bool(false)),
        ("empty", text("")),
        ("quote", text("it's")),
        ("percent", text("100%")),
        ("under", text("a_b")),
        ("nothing", Value::Null),
        ("list", Value::List(vec![Value::I32(1)])),
        ("raw", Value::Bytes("ab".into())),
        ("when", Value::Time(1000)),
        ("guid", Value::Uuid([7; 16])),
        ("HR-EmployeeID", text("e7")),
        ("with space", text("sp")),
        ("Straße", text("ü")),
        ("order", text("o")),
        ("user", text("me")),
        ("sys", text("tem")),
        ("p", text("pee")),
        ("name", text("color")),
        ("case", text("lower")),
        ("CASE", text("upper")),
        ("long", text(&"ab".repeat(2000))),
    ];
    Message {
        message_id: Some("m-1".into()),
        correlation_id: Some("c-1".into()),
        subject: Some("red bus".into()),
        to: Some("Store5".into()),
        reply_to: Some("answers".into()),
        reply_to_session: Some("rs".into()),
        session: Some(SessionId::new("s-1").unwrap()),
        content_type: Some("application/json".into()),
        key: Some("k-1".into()),
        ttl_ms: Some(60_000),
        properties: properties.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        ..Message::default()
    }
}

/// Each line: the condition, then TRUE, FALSE or UNKNOWN.
fn check(table: &str) {
    let message = message();
    let facts = Facts::new(&message, Timestamp(5000));
    let parameters = vec![
        ("@text".to_owned(), Value::String("blue".into())),
        ("n".to_owned(), Value::I32(10)),
        ("@time".to_owned(), Value::Time(5000)),
        ("@id".to_owned(), Value::Uuid([7; 16])),
        ("@raw".to_owned(), Value::Bytes("ab".into())),
        ("@yes".to_owned(), Value::Bool(true)),
        ("@none".to_owned(), Value::Null),
    ];
    let mut wrong = Vec::new();
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (text, expected) = line.rsplit_once(' ').expect("a condition and what it is");
        let filter = SqlFilter::new(text.trim(), parameters.clone());
        let filter = filter.unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
        let said = match filter.evaluate(&facts) {
            Some(true) => "TRUE",
            Some(false) => "FALSE",
            None => "UNKNOWN",
        };
        assert_eq!(filter.matches(&facts), said == "TRUE");
        if said != expected.trim() {
            wrong.push(format!("{}: {said}, not {}", text.trim(), expected.trim()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn comparisons() {
    check(
        "
        color = 'blue'                          TRUE
        color = 'Blue'                          FALSE
        color <> 'red'                          TRUE
        color != 'blue'                         FALSE
        color > 'azure'                         TRUE
        color >= 'blue'                         TRUE
        color < 'blue'                          FALSE
        color <= 'blue'                         TRUE
        'blue' = color                          TRUE
        'b' < 'ba'                              TRUE
        'Z' < 'a'                               TRUE
        'é' > 'z'                               TRUE
        empty = ''                              TRUE
        quote = 'it''s'                         TRUE
        '''' = ''''                             TRUE
        Size = 10                               TRUE
        Size = 10.0                             TRUE
        Size = 1E1                              TRUE
        Size <> 10                              FALSE
        Size > 9.99                             TRUE
        Size >= 10                              TRUE
        Size < 10                               FALSE
        small = -3                              TRUE
        small < 0                               TRUE
        small < big                             TRUE
        big = 18446744073709551615              TRUE
        big > 9223372036854775807               TRUE
        big = -1                                FALSE
        price = 2.5                             TRUE
        price = .25E1                           TRUE
        price > 2                               TRUE
        price < 101.5E5                         TRUE
        single = 0.1                            FALSE
        single > 0.09                           TRUE
        9007199254740993 = 9007199254740992.0   TRUE
        9007199254740993 = 9007199254740992     FALSE
        nan = nan                               FALSE
        nan <> nan                              TRUE
        nan < 1                                 FALSE
        nan >= 1                                FALSE
        nan = 1                                 FALSE
        flag = TRUE                             TRUE
        flag = true                             TRUE
        flag <> FALSE                           TRUE
        flag = off                              FALSE
        TRUE = TRUE                             TRUE
        1=1                                     TRUE
        1=0                                     FALSE
        when = when                             TRUE
        when < sys.EnqueuedTimeUtc              TRUE
        guid = @id                              TRUE
        guid <> @id                             FALSE
        raw = @raw                              TRUE
        raw <> raw                              FALSE
        ",
    );
}

/// Values that cannot be compared are neither equal nor unequal.
#[test]
fn unknown_comparisons() {
    check(
        "
        missing = 1                  UNKNOWN
        1 = missing                  UNKNOWN
        missing <> 1                 UNKNOWN
        missing != missing           UNKNOWN
        missing < 1                  UNKNOWN
        missing >= 'a'               UNKNOWN
        nothing = 1                  UNKNOWN
        nothing <> 1                 UNKNOWN
        nothing = nothing            UNKNOWN
        nothing = NULL               UNKNOWN
        color = NULL                 UNKNOWN
        color <> NULL                UNKNOWN
        NULL = NULL                  UNKNOWN
        Size = '10'                  UNKNOWN
        Size <> '10'                 UNKNOWN
        color = 1                    UNKNOWN
        color > 1.5                  UNKNOWN
        flag = 1                     UNKNOWN
        flag = 'TRUE'                UNKNOWN
        flag > FALSE                 UNKNOWN
        flag <= TRUE                 UNKNOWN
        when = 1000                  UNKNOWN
        when = '1970-01-01'          UNKNOWN
        guid = '07070707-0707-0707-0707-070707070707'  UNKNOWN
        guid < guid                  UNKNOWN
        raw = 'ab'                   UNKNOWN
        raw < raw                    UNKNOWN
        list = list                  UNKNOWN
        list = 1                     UNKNOWN
        missing                      UNKNOWN
        color                        UNKNOWN
        Size                         UNKNOWN
        NULL                         UNKNOWN
        ",
    );
}

#[test]
fn logic_has_three_values() {
    check(
        "
        TRUE AND TRUE                TRUE
        TRUE AND FALSE               FALSE
        TRUE AND NULL                UNKNOWN
        FALSE AND TRUE               FALSE
        FALSE AND FALSE              FALSE
        FALSE AND NULL               FALSE
        NULL AND TRUE                UNKNOWN
        NULL AND FALSE               FALSE
        NULL AND NULL                UNKNOWN
        TRUE OR TRUE                 TRUE
        TRUE OR FALSE                TRUE
        TRUE OR NULL                 TRUE
        FALSE OR TRUE                TRUE
        FALSE OR FALSE               FALSE
        FALSE OR NULL                UNKNOWN
        NULL OR TRUE                 TRUE
        NULL OR FALSE                UNKNOWN
        NULL OR NULL                 UNKNOWN
        NOT TRUE                     FALSE
        NOT FALSE                    TRUE
        NOT NULL                     UNKNOWN
        NOT NOT TRUE                 TRUE
        NOT NOT FALSE                FALSE
        NOT NOT NULL                 UNKNOWN
        NOT NOT NOT TRUE             FALSE
        NOT missing = 1              UNKNOWN
        NOT (missing = 1)            UNKNOWN
        NOT (color = 'red')          TRUE
        NOT color = 'blue'           FALSE
        missing = 1 OR color = 'blue'        TRUE
        missing = 1 AND color = 'red'        FALSE
        missing = 1 OR color = 'red'         UNKNOWN
        missing = 1 AND color = 'blue'       UNKNOWN
        TRUE OR FALSE AND FALSE      TRUE
        (TRUE OR FALSE) AND FALSE    FALSE
        NOT TRUE OR TRUE             TRUE
        NOT (TRUE OR TRUE)           FALSE
        NOT FALSE AND FALSE          FALSE
        FALSE AND FALSE OR TRUE      TRUE
        flag                         TRUE
        NOT flag                     FALSE
        flag AND off                 FALSE
        flag OR off                  TRUE
        (flag)                       TRUE
        @yes                         TRUE
        color AND TRUE               UNKNOWN
        color OR TRUE                TRUE
        color='blue'and Size=10 or off    TRUE
        CoLoR = 'blue' AnD nOt OFF   TRUE
        ",
    );
}

#[test]
fn null_and_existence() {
    check(
        "
        missing IS NULL              TRUE
        missing IS NOT NULL          FALSE
        nothing IS NULL              TRUE
        nothing IS NOT NULL          FALSE
        color IS NULL                FALSE
        color IS NOT NULL            TRUE
        list IS NULL                 FALSE
        off IS NULL                  FALSE
        empty IS NULL                FALSE
        sys.Label IS NULL            FALSE
        sys.ScheduledEnqueueTimeUtc IS NULL    TRUE
        sys.ScheduledEnqueueTimeUtc IS NOT NULL    FALSE
        color IS NULL OR Size = 10   TRUE
        NOT color IS NULL            TRUE
        @none IS NULL                TRUE
        property('missing') IS NULL  TRUE
        property('color') IS NULL    FALSE
        EXISTS(color)                TRUE
        EXISTS ( color )             TRUE
        exists(missing)              FALSE
        EXISTS(nothing)              TRUE
        EXISTS(user.color)           TRUE
        EXISTS([HR-EmployeeID])      TRUE
        EXISTS(sys.To)               TRUE
        EXISTS(sys.ScheduledEnqueueTimeUtc)    FALSE
        NOT EXISTS(missing)          TRUE
        NOT EXISTS(color)            FALSE
        EXISTS(color) AND color = 'blue'       TRUE
        ",
    );
}

#[test]
fn lists() {
    check(
        "
        color IN ('red', 'blue')     TRUE
        color IN ('red')             FALSE
        color IN('blue')             TRUE
        color NOT IN ('red', 'green')    TRUE
        color NOT IN ('blue')        FALSE
        NOT color IN ('blue')        FALSE
        Size IN (1, 10.0)            TRUE
        Size IN (5 + 5)              TRUE
        Size + 1 IN (11)             TRUE
        missing IN ('a')             UNKNOWN
        missing NOT IN ('a')         UNKNOWN
        nothing IN (NULL)            UNKNOWN
        NULL IN (1)                  UNKNOWN
        color IN (missing, 'blue')   TRUE
        color IN (missing, 'red')    FALSE
        color NOT IN (missing, 'red')    TRUE
        color IN (1, 2)              FALSE
        color NOT IN (1, 2)          TRUE
        color IN (color)             TRUE
        sys.To IN ('Store5','Store6','Store7') OR StoreId = 'Store8'    TRUE
        sys.To NOT IN ('Store1','Store2') OR StoreId NOT IN ('Store1')  TRUE
        sys.Label LIKE '%bus%' OR user.tag IN ('queue', 'topic')        TRUE
        ",
    );
}

#[test]
fn likes() {
    check(
        r"
        color LIKE 'blue'            TRUE
        color LIKE 'BLUE'            FALSE
        color LIKE 'b%'              TRUE
        color LIKE '%e'              TRUE
        color LIKE '%lu%'            TRUE
        color LIKE '%'               TRUE
        color LIKE '%%'              TRUE
        color LIKE 'b__e'            TRUE
        color LIKE '____'            TRUE
        color LIKE '___'             FALSE
        color LIKE '_____'           FALSE
        color LIKE '_%_'             TRUE
        color LIKE '%_____%'         FALSE
        color LIKE '%b_u%'           TRUE
        color LIKE ''                FALSE
        empty LIKE ''                TRUE
        empty LIKE '%'               TRUE
        empty LIKE '_'               FALSE
        color NOT LIKE 'r%'          TRUE
        color NOT LIKE 'b%'          FALSE
        NOT color LIKE 'b%'          FALSE
        color LIKE 'b%b%'            FALSE
        'aab' LIKE '%ab'             TRUE
        'abab' LIKE '%ab'            TRUE
        'ab' LIKE 'ab%ab'            FALSE
        'a.b' LIKE 'a.b'             TRUE
        'axb' LIKE 'a.b'             FALSE
        'a*b' LIKE 'a*b'             TRUE
        'é' LIKE '_'                 TRUE
        'é' LIKE '__'                FALSE
        percent LIKE '100\%' ESCAPE '\'      TRUE
        percent LIKE '1\%' ESCAPE '\'        FALSE
        percent LIKE '100\%'         FALSE
        percent LIKE '%!%' ESCAPE '!'        TRUE
        color LIKE '%!%' ESCAPE '!'  FALSE
        under LIKE 'a!_b' ESCAPE '!' TRUE
        'axb' LIKE 'a!_b' ESCAPE '!' FALSE
        'a!b' LIKE 'a!!b' ESCAPE '!' TRUE
        'ab' LIKE 'a!b' ESCAPE '!'   TRUE
        'a%' LIKE 'a%%' ESCAPE '%'   TRUE
        'ax' LIKE 'a%%' ESCAPE '%'   FALSE
        color LIKE color             TRUE
        color LIKE 'b' + '%'         TRUE
        color LIKE 'b!' + '%' ESCAPE '!'     FALSE
        percent LIKE percent ESCAPE empty    UNKNOWN
        percent LIKE percent ESCAPE color    UNKNOWN
        percent LIKE percent ESCAPE missing  UNKNOWN
        percent LIKE percent ESCAPE '%'      UNKNOWN
        missing LIKE 'a%'            UNKNOWN
        missing NOT LIKE 'a%'        UNKNOWN
        color LIKE missing           UNKNOWN
        color NOT LIKE missing       UNKNOWN
        color LIKE Size              UNKNOWN
        Size LIKE '10'               UNKNOWN
        nothing LIKE '%'             UNKNOWN
        sys.Label LIKE '%bus%'       TRUE
        ",
    );
}

#[test]
fn arithmetic() {
    check(
        "
        1 + 2 = 3                    TRUE
        1 + 2 * 3 = 7                TRUE
        (1 + 2) * 3 = 9              TRUE
        10 - 3 - 2 = 5               TRUE
        10 / 4 = 2                   TRUE
        10 / 4.0 = 2.5               TRUE
        -7 / 2 = -3                  TRUE
        -7 % 3 = -1                  TRUE
        7 % -3 = 1                   TRUE
        7.5 % 2 = 1.5                TRUE
        2 * 3 % 4 = 2                TRUE
        -Size = -10                  TRUE
        --Size = 10                  TRUE
        - - 1 = 1                    TRUE
        +Size = 10                   TRUE
        -(1 + 2) = -3                TRUE
        2 - -2 = 4                   TRUE
        Size * price = 25            TRUE
        Size % 3 = 1                 TRUE
        small + Size = 7             TRUE
        'a' + 'b' = 'ab'             TRUE
        color + '' = color           TRUE
        10 / 0 = 1                   UNKNOWN
        10 % 0 = 1                   UNKNOWN
        10 / 0 <> 1                  UNKNOWN
        1.0 / 0 > 1E300              TRUE
        0.0 / 0 = 0.0 / 0            FALSE
        big + 1 > 0                  UNKNOWN
        big * big > 0                UNKNOWN
        -big < 0                     UNKNOWN
        -9223372036854775808 < 0     TRUE
        -9223372036854775808 - 1 < 0 UNKNOWN
        9223372036854775807 + 1 > 0  TRUE
        missing + 1 = 1              UNKNOWN
        1 - missing = 1              UNKNOWN
        -missing = 1                 UNKNOWN
        missing * 0 = 0              UNKNOWN
        nothing + 1 = 1              UNKNOWN
        color + 1 = 'blue1'          UNKNOWN
        color - 'b' = 'lue'          UNKNOWN
        -color = 'blue'              UNKNOWN
        +color = 'blue'              UNKNOWN
        flag + 1 = 2                 UNKNOWN
        when + 1 > when              UNKNOWN
        long + 'x' = 'x'             FALSE
        long + long = 'x'            UNKNOWN
        missing + 1 IS NULL          TRUE
        ",
    );
}

#[test]
fn names() {
    check(
        r#"
        COLOR = 'blue'               TRUE
        size = 10                    TRUE
        user.color = 'blue'          TRUE
        USER.Color = 'blue'          TRUE
        user . color = 'blue'        TRUE
        [color] = 'blue'             TRUE
        "color" = 'blue'             TRUE
        user.[color] = 'blue'        TRUE
        user."color" = 'blue'        TRUE
        [HR-EmployeeID] = 'e7'       TRUE
        [hr-employeeid] = 'e7'       TRUE
        [with space] = 'sp'          TRUE
        "with space" = 'sp'          TRUE
        Straße = 'ü'                 TRUE
        STRASSE = 'ü'                UNKNOWN
        order = 'o'                  TRUE
        [order] = 'o'                TRUE
        user = 'me'                  TRUE
        user.user = 'me'             TRUE
        sys = 'tem'                  TRUE
        user.sys = 'tem'             TRUE
        p = 'pee'                    TRUE
        case = 'lower'               TRUE
        CASE = 'upper'               TRUE
        Case = 'lower'               TRUE
        [a]]b] IS NULL               TRUE
        "a""b" IS NULL               TRUE
        [and] IS NULL                TRUE
        _x1 IS NULL                  TRUE
        property('color') = 'blue'   TRUE
        PROPERTY('Color') = 'blue'   TRUE
        p('color') = 'blue'          TRUE
        p(name) = 'blue'             TRUE
        p('co' + 'lor') = 'blue'     TRUE
        p('user.color') = 'blue'     TRUE
        p('sys.To') = 'Store5'       TRUE
        p('sys.Nothing') = 'x'       UNKNOWN
        p('HR-EmployeeID') = 'e7'    TRUE
        p('missing') = 1             UNKNOWN
        p(missing) = 1               UNKNOWN
        p(Size) = 1                  UNKNOWN
        p(p('name')) = 'blue'        TRUE
        p('flag')                    TRUE
        color = @text                TRUE
        color = @TEXT                TRUE
        Size = @n                    TRUE
        Size = @n AND @text = 'blue' TRUE
        color = @none                UNKNOWN
        color IN ('x', @text)        TRUE
        "#,
    );
}

#[test]
fn system_properties() {
    check(
        "
        sys.MessageId = 'm-1'        TRUE
        sys.CorrelationId = 'c-1'    TRUE
        sys.Label = 'red bus'        TRUE
        sys.Subject = 'red bus'      TRUE
        sys.To = 'Store5'            TRUE
        sys.ReplyTo = 'answers'      TRUE
        sys.ReplyToSessionId = 'rs'  TRUE
        sys.SessionId = 's-1'        TRUE
        sys.ContentType LIKE '%json' TRUE
        sys.PartitionKey = 'k-1'     TRUE
        sys.TimeToLive = 60000       TRUE
        sys.TimeToLive < 60000       FALSE
        sys.EnqueuedTimeUtc = @time  TRUE
        sys.EnqueuedTimeUtc > when   TRUE
        sys.ScheduledEnqueueTimeUtc = @time    UNKNOWN
        sys.DeliveryCount = 0        TRUE
        SYS.label = 'red bus'        TRUE
        sys.[Label] = 'red bus'      TRUE
        Label = 'red bus'            UNKNOWN
        user.Label = 'red bus'       UNKNOWN
        ",
    );
    let empty = Message::default();
    let facts = Facts::new(&empty, Timestamp(1));
    for name in ["MessageId", "Label", "SessionId", "PartitionKey", "TimeToLive", "To"] {
        let filter = SqlFilter::new(&format!("sys.{name} = 'x'"), vec![]).unwrap();
        assert_eq!(filter.evaluate(&facts), None, "{name}");
    }
    let scheduled = Message { when: When::At(Timestamp(9)), ..Message::default() };
    let filter = "sys.ScheduledEnqueueTimeUtc > sys.EnqueuedTimeUtc";
    let filter = SqlFilter::new(filter, vec![]).unwrap();
    assert_eq!(filter.evaluate(&Facts::new(&scheduled, Timestamp(1))), Some(true));
}

fn refused(text: &str) -> String {
    SqlFilter::new(text, vec![]).map_or_else(|refusal| refusal.to_string(), |_| "taken".into())
}

#[test]
fn refusals_name_the_place_and_what_is_expected() {
    let cases = [
        ("", "filter: at character 1, a value or a condition is expected, not the end"),
        ("   ", "filter: at character 4, a value or a condition is expected, not the end"),
        ("color =", "filter: at character 8, a value or a condition is expected, not the end"),
        ("= 1", "filter: at character 1, a value or a condition is expected, not `=`"),
        ("color = = 1", "filter: at character 9, a value or a condition is expected, not `=`"),
        ("a = 1 AND", "filter: at character 10, a value or a condition is expected, not the end"),
        ("a = 1 b = 2", "filter: at character 7, the end, or an operator, is expected, not `b`"),
        ("a = 1 = 2", "filter: at character 7, the end, or an operator, is expected, not `=`"),
        ("a = 1)", "filter: at character 6, the end, or an operator, is expected, not `)`"),
        ("(a = 1", "filter: at character 7, `)`, or an operator, is expected, not the end"),
        (
            "1",
            "filter: at character 1, a condition is expected, not a value: compare it with something",
        ),
        (
            "a = 1 OR 'x'",
            "filter: at character 10, a condition is expected, not a value: compare it with something",
        ),
        (
            "a + 1",
            "filter: at character 1, a condition is expected, not a value: compare it with something",
        ),
        (
            "NOT 1",
            "filter: at character 5, a condition is expected, not a value: compare it with something",
        ),
        ("(a = 1) = TRUE", "filter: at character 1, a value is expected, not a condition"),
        ("1 = (a = 1)", "filter: at character 5, a value is expected, not a condition"),
        ("(a = 1) + 1 = 2", "filter: at character 1, a value is expected, not a condition"),
        ("-(a = 1) = 2", "filter: at character 2, a value is expected, not a condition"),
        ("(a = 1) IS NULL", "filter: at character 1, a value is expected, not a condition"),
        ("a IN 1", "filter: at character 6, `(` is expected, not 1"),
        ("a IN ()", "filter: at character 7, a value or a condition is expected, not `)`"),
        ("a IN (1 2)", "filter: at character 9, `,` or `)` is expected, not 2"),
        ("a NOT = 1", "filter: at character 3, the end, or an operator, is expected, not `NOT`"),
        ("a IS 1", "filter: at character 6, NULL or NOT NULL is expected, not 1"),
        ("a IS NOT 1", "filter: at character 10, NULL is expected, not 1"),
        (
            "a LIKE 'x' ESCAPE 'ab'",
            "filter: at character 19, an escape character is expected, that is a text of length 1",
        ),
        (
            "a LIKE 'x!' ESCAPE '!'",
            "filter: at character 8, a pattern is expected that does not end in its escape character",
        ),
        ("EXISTS a", "filter: at character 8, `(` is expected, not `a`"),
        (
            "EXISTS('a')",
            "filter: at character 8, the name of a property is expected, not the text 'a'",
        ),
        ("EXISTS(and)", "filter: at character 8, the name of a property is expected, not `and`"),
        ("a = 'x", "filter: at character 5, a text begins that has no closing `'`"),
        ("[a = 1", "filter: at character 1, a name begins that has no closing `]`"),
        ("[] = 1", "filter: at character 1, a name is expected, not an empty one"),
        ("a = 1 ? 2", "filter: at character 7, `?` has no meaning here"),
        ("é = 1 ~", "filter: at character 7, `~` has no meaning here"),
        ("a = 12x", "filter: at character 5, a number is followed by a letter"),
        ("a = 0x1f", "filter: at character 5, a number is followed by a letter"),
        (
            "a = 18446744073709551616",
            "filter: at character 5, the number 18446744073709551616 is too large",
        ),
        ("a = 1E999", "filter: at character 5, the number 1E999 is too large"),
        ("a = @", "filter: at character 5, the name of a parameter is expected after `@`"),
        ("a = @x", "filter: at character 5, the parameter `@x` has no value"),
        (
            "foo.bar = 1",
            "filter: at character 1, `sys` or `user` is expected before a dot, not `foo`",
        ),
        (
            "[sys].To = 1",
            "filter: at character 1, `sys` or `user` is expected before a dot, not `sys`",
        ),
        ("user.a.b = 1", "filter: at character 7, the end, or an operator, is expected, not `.`"),
        ("foo('a') = 1", "filter: at character 1, `foo` is no function: use property(name)"),
        (
            "newid() = 1",
            "filter: at character 1, newid() is not there: a message must be routed the same way every time",
        ),
        ("SET a = 1", "filter: at character 5, the end, or an operator, is expected, not `a`"),
        (
            "a BETWEEN 1 AND 2",
            "filter: at character 3, the end, or an operator, is expected, not `BETWEEN`",
        ),
        ("a = 1;", "filter: at character 6, the end, or an operator, is expected, not `;`"),
    ];
    for (text, expected) in cases {
        assert_eq!(refused(text), expected, "{text}");
    }
    let system = refused("sys.SequenceNumber = 1");
    assert!(
        system.starts_with(
            "filter: at character 5, `SequenceNumber` is no system property; there are MessageId, "
        ),
        "{system}"
    );
}

#[test]
fn texts_are_bounded() {
    let fits = format!("a = '{}'", "x".repeat(1024 - 6));
    assert_eq!(refused(&fits), "taken");
    assert_eq!(refused(&format!("{fits} ")), "filter: must have at most 1024 characters");
    let nested = |n: usize| format!("{}a = 1{}", "(".repeat(n), ")".repeat(n));
    assert_eq!(refused(&nested(32)), "taken");
    assert_eq!(refused(&nested(33)), "filter: at character 33, parentheses nest deeper than 32");
    let calls = |n: usize| format!("{}'x'{} = 1", "p(".repeat(n), ")".repeat(n));
    assert_eq!(refused(&calls(32)), "taken");
    assert_eq!(refused(&calls(33)), "filter: at character 65, calls nest deeper than 32");
    // What does not nest may have any length.
    assert_eq!(refused(&format!("{}TRUE", "NOT ".repeat(255))), "taken");
    assert_eq!(refused(&format!("{}1 = 1", "-".repeat(1019))), "taken");
    assert_eq!(refused(&format!("TRUE{}", " OR a".repeat(200))), "taken");
    assert_eq!(refused(&format!("1{} = 1", "+1".repeat(500))), "taken");
}

#[test]
fn a_filter_keeps_its_text() {
    let parameters = vec![("@x".to_owned(), Value::I32(1))];
    let filter = SqlFilter::new(" a=@x ", parameters.clone()).unwrap();
    assert_eq!((filter.text(), filter.parameters()), (" a=@x ", parameters.as_slice()));
    assert_eq!(format!("{filter:?}"), "SqlFilter(\" a=@x \")");
    assert_ne!(filter, SqlFilter::new("a=@x", parameters).unwrap());
}
