//! XML from strangers as a small tree, and text that is safe inside of XML.
//!
//! Names come without their prefixes: clients choose those as they like. No document types, and so no entities but the
//! five that XML has itself.

use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// How deep elements may stand in one another; a rule of a subscription stands eight deep.
const DEPTH_MAX: usize = 16;
/// Elements of one document: a rule with the most properties that it may have needs under a thousand.
const ELEMENTS_MAX: usize = 4_096;

/// An element with all that is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Element {
    /// Its name, without a prefix.
    pub name: String,
    /// Its `type`, without a prefix.
    pub kind: Option<String>,
    /// Its own text. Between elements it means nothing.
    pub text: String,
    /// What is in it.
    pub children: Vec<Element>,
}

impl Element {
    /// Reads a document; what is wrong with it otherwise.
    pub fn parse(bytes: &[u8]) -> Result<Element, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
        let (mut open, mut count) = (Vec::<Element>::new(), 0_usize);
        loop {
            let done = match reader.read_event().map_err(|error| error.to_string())? {
                Event::Start(start) => {
                    count += 1;
                    if open.len() >= DEPTH_MAX || count > ELEMENTS_MAX {
                        return Err("it has too many elements, or they stand too deep".to_owned());
                    }
                    open.push(Element::of(&start)?);
                    None
                }
                Event::Empty(empty) => {
                    count += 1;
                    if open.len() >= DEPTH_MAX || count > ELEMENTS_MAX {
                        return Err("it has too many elements, or they stand too deep".to_owned());
                    }
                    Some(Element::of(&empty)?)
                }
                Event::End(_) => open.pop(),
                Event::Text(text) => {
                    append(open.last_mut(), &text.xml10_content())?;
                    None
                }
                Event::CData(text) => {
                    append(open.last_mut(), &text.xml10_content())?;
                    None
                }
                Event::GeneralRef(reference) => {
                    let unknown = || "it refers to an entity that XML does not have".to_owned();
                    match reference.resolve_char_ref().map_err(|error| error.to_string())? {
                        Some(character) => append(open.last_mut(), &character.to_string())?,
                        None => {
                            let text = resolve_predefined_entity(&reference).ok_or_else(unknown)?;
                            append(open.last_mut(), text)?;
                        }
                    }
                    None
                }
                Event::DocType(_) => return Err("it has a document type".to_owned()),
                Event::Eof => return Err("it ends too early".to_owned()),
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => None,
            };
            if let Some(element) = done {
                match open.last_mut() {
                    Some(parent) => parent.children.push(element),
                    // Whatever follows the root is nobody's.
                    None => return Ok(element),
                }
            }
        }
    }

    fn of(start: &BytesStart<'_>) -> Result<Element, String> {
        let mut kind = None;
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| error.to_string())?;
            if attribute.key.local_name().as_ref() == "type" {
                let value = attribute
                    .normalized_value(XmlVersion::Implicit1_0)
                    .map_err(|error| error.to_string())?;
                let value = value.rsplit(':').next().unwrap_or_default();
                check(value)?;
                kind = Some(value.to_owned());
            }
        }
        let name = start.local_name().into_inner().to_owned();
        // Whatever has another name is nothing that we know, and is not repeated to anybody.
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        match !name.is_empty() && name.chars().all(fine) {
            true => Ok(Element { name, kind, ..Element::default() }),
            false => Err("it has an element with a strange name".to_owned()),
        }
    }

    /// The element that describes an entity: what the content of an Atom entry holds.
    pub fn description(bytes: &[u8]) -> Result<Element, String> {
        let mut entry = Element::parse(bytes)?;
        if entry.name != "entry" {
            return Err("its root is not `entry`".to_owned());
        }
        let content = entry.children.iter_mut().find(|child| child.name == "content");
        let content = content.ok_or("it has no content")?;
        match content.children.is_empty() {
            true => Err("its content is empty".to_owned()),
            false => Ok(content.children.swap_remove(0)),
        }
    }

    /// The first child of that name.
    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The text of a child.
    pub fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.as_str())
    }

    /// What stands between its tags, as XML that needs the prefix `i` for the types of schema instances.
    pub fn inner(&self) -> String {
        let mut out = String::new();
        self.put_inner(&mut out);
        out
    }

    fn put_inner(&self, out: &mut String) {
        if self.children.is_empty() {
            escape(out, &self.text);
        }
        for child in &self.children {
            let attribute =
                child.kind.as_ref().map(|kind| format!(" i:type=\"{}\"", escaped(kind)));
            let (name, attribute) = (&child.name, attribute.unwrap_or_default());
            out.push_str(&format!("<{name}{attribute}>"));
            child.put_inner(out);
            out.push_str(&format!("</{name}>"));
        }
    }
}

fn append(open: Option<&mut Element>, text: &str) -> Result<(), String> {
    check(text)?;
    match open {
        Some(element) => element.text.push_str(text),
        None if text.trim().is_empty() => {}
        None => return Err("it begins with text".to_owned()),
    }
    Ok(())
}

fn check(text: &str) -> Result<(), String> {
    match text.chars().any(is_forbidden) {
        true => Err("it has a character that XML does not allow".to_owned()),
        false => Ok(()),
    }
}

fn is_forbidden(c: char) -> bool {
    matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

/// Text as it may stand in an element or attribute. What XML cannot say at all is replaced.
pub fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\r' => out.push_str("&#13;"),
            c if is_forbidden(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

/// The same as a text of its own.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    escape(&mut out, text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn error(text: &str) -> String {
        Element::parse(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn prefixes_do_not_count_and_types_do() {
        let text = r#"<?xml version="1.0"?><!-- hello --><a:entry xmlns:a="x"><content type="application/xml">
            <Filter xmlns:p4="y" p4:type="SqlFilter"><SqlExpression>a &lt; 1 &amp; b &#65;<![CDATA[<c>]]></SqlExpression></Filter>
            <Value i:type="l28:double"/></content></a:entry>trailing"#;
        let entry = Element::parse(text.as_bytes()).unwrap();
        let content = entry.child("content").unwrap();
        let filter = content.child("Filter").unwrap();
        assert_eq!((entry.name.as_str(), filter.kind.as_deref()), ("entry", Some("SqlFilter")));
        assert_eq!(filter.text_of("SqlExpression"), Some("a < 1 & b A<c>"));
        assert_eq!(content.child("Value").unwrap().kind.as_deref(), Some("double"));
        expect![[r#"<Filter i:type="SqlFilter"><SqlExpression>a &lt; 1 &amp; b A&lt;c&gt;</SqlExpression></Filter><Value i:type="double"></Value>"#]]
            .assert_eq(&content.inner());
    }

    #[test]
    fn what_is_no_document_is_told() {
        for (text, why) in [
            ("", "it ends too early"),
            ("text", "it begins with text"),
            ("<a>", "it ends too early"),
            ("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>", "it has a document type"),
            ("<a>&b;</a>", "it refers to an entity that XML does not have"),
            ("<a>&#1;</a>", "it has a character that XML does not allow"),
        ] {
            assert_eq!(error(text), why, "{text}");
        }
        for text in ["<a></b>", "<a", "</a>", "<a b=c/>", "<a>&</a>", "<a<b/>", "<a\"/>", "<x:/>"] {
            error(text);
        }
        assert_eq!(Element::parse(b"<a>\xff</a>").unwrap_err(), "it is not UTF-8");
    }

    #[test]
    fn documents_have_an_end() {
        let deep = |n: usize| format!("{}{}", "<a>".repeat(n), "</a>".repeat(n));
        Element::parse(deep(DEPTH_MAX).as_bytes()).unwrap();
        error(&deep(DEPTH_MAX + 1));
        error(&deep(100_000));
        error(&format!("<a>{}</a>", "<b/>".repeat(ELEMENTS_MAX)));
    }

    #[test]
    fn what_is_escaped_reads_back() {
        let text = "a<b>&\"'\r\n\tü";
        let again = Element::parse(format!("<a>{}</a>", escaped(text)).as_bytes()).unwrap();
        assert_eq!(again.text, text);
        assert_eq!(escaped("\u{1}x"), "\u{fffd}x");
    }
}
