//! Service Bus administration: entity descriptions in Atom entries.

use malote_front_servicebus::wire::duration::{format_ms, parse_ms};
use malote_front_servicebus::wire::rule_xml;
use malote_front_servicebus::wire::xml::{Element, escaped};

/// One entry of each kind.
pub(super) const BODIES: &[&str] = &[
    r#"<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><LockDuration>PT1M</LockDuration><MaxDeliveryCount>10</MaxDeliveryCount><DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive><AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><Rights><AccessRights>Send</AccessRights></Rights></AuthorizationRule></AuthorizationRules><UserMetadata>a &lt; &#65;<![CDATA[<b>]]></UserMetadata></QueueDescription></content></entry>"#,
    r#"<ns0:entry xmlns:ns0="http://www.w3.org/2005/Atom"><ns0:content><RuleDescription><Filter p4:type="SqlFilter"><SqlExpression>a = @p AND b &lt; 1</SqlExpression><Parameters><KeyValueOfstringanyType><Key>@p</Key><Value p4:type="l28:double">1.5</Value></KeyValueOfstringanyType></Parameters></Filter><Action p4:type="SqlRuleAction"><SqlExpression>SET c = 'x'; REMOVE d</SqlExpression></Action><Name>r</Name></RuleDescription></ns0:content></ns0:entry>"#,
    r#"<entry><!-- all types --><content><RuleDescription><Filter i:type="CorrelationFilter"><Label>news</Label><MessageId>1</MessageId><Properties><KeyValueOfstringanyType><Key>a</Key><Value i:type="x:int">7</Value></KeyValueOfstringanyType><KeyValueOfstringanyType><Key>b</Key><Value i:type="x:boolean">true</Value></KeyValueOfstringanyType><KeyValueOfstringanyType><Key>c</Key><Value i:type="x:dateTime">2026-01-02T03:04:05.006Z</Value></KeyValueOfstringanyType></Properties></Filter><Action i:type="EmptyRuleAction"/></RuleDescription></content></entry>"#,
    r#"<entry><content><SubscriptionDescription><DefaultRuleDescription><Filter i:type="TrueFilter"/><Name>$Default</Name></DefaultRuleDescription><AutoDeleteOnIdle>P1DT2H3M4.005S</AutoDeleteOnIdle></SubscriptionDescription></content></entry>"#,
    r#"<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;">]><entry>&d;</entry>"#,
];

pub(super) fn try_body(bytes: &[u8]) {
    let Ok(description) = Element::description(bytes) else { return };
    // A description is stored as text and returned unchanged, so it must not end the element that contains it.
    let kept = format!("<kept>{}</kept>", description.inner());
    let again = Element::parse(kept.as_bytes()).expect("the stored text is XML");
    assert_eq!(again.inner(), description.inner(), "the stored text changes");
    for child in &description.children {
        let again = format!("<text>{}</text>", escaped(&child.text));
        let again = Element::parse(again.as_bytes()).expect("escaped text is XML");
        assert_eq!(again.text, child.text, "escaped text changes");
        if let Some(ms) = parse_ms(child.text.trim()) {
            assert_eq!(parse_ms(&format_ms(ms)), Some(ms), "a duration changes");
        }
    }
    let rules = [Some(&description), description.child("DefaultRuleDescription")];
    for rule in rules.into_iter().flatten().filter_map(|rule| rule_xml::read("r", rule).ok()) {
        let mut out = "<RuleDescription>".to_owned();
        rule_xml::write(&mut out, &rule);
        out.push_str("</RuleDescription>");
        let again = Element::parse(out.as_bytes()).expect("a written rule is XML");
        let again = rule_xml::read("r", &again).expect("a written rule can be read");
        assert_eq!(format!("{again:?}"), format!("{rule:?}"), "a rule changes");
    }
}
