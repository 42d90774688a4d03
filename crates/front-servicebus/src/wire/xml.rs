//! Parses untrusted XML into a tree, and escapes text.
//!
//! Namespace prefixes are dropped, because clients choose them freely. Document types are refused, so only the five
//! predefined entities exist.

use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// Nesting depth; a rule of a subscription needs eight.
const DEPTH_MAX: usize = 16;
/// Elements per document; a rule with the most properties needs fewer than a thousand.
const ELEMENTS_MAX: usize = 4_096;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Element {
    /// Name without prefix.
    pub name: String,
    /// The `type` attribute without prefix.
    pub kind: Option<String>,
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    /// Parses a document, or returns what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Element, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "not valid UTF-8".to_owned())?;
        let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
        let (mut open, mut count) = (Vec::<Element>::new(), 0_usize);
        loop {
            let done = match reader.read_event().map_err(|error| error.to_string())? {
                Event::Start(start) => {
                    count += 1;
                    if open.len() >= DEPTH_MAX || count > ELEMENTS_MAX {
                        return Err("too many or too deeply nested elements".to_owned());
                    }
                    open.push(Element::of(&start)?);
                    None
                }
                Event::Empty(empty) => {
                    count += 1;
                    if open.len() >= DEPTH_MAX || count > ELEMENTS_MAX {
                        return Err("too many or too deeply nested elements".to_owned());
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
                    let unknown = || "unknown entity reference".to_owned();
                    match reference.resolve_char_ref().map_err(|error| error.to_string())? {
                        Some(character) => append(open.last_mut(), &character.to_string())?,
                        None => {
                            let text = resolve_predefined_entity(&reference).ok_or_else(unknown)?;
                            append(open.last_mut(), text)?;
                        }
                    }
                    None
                }
                Event::DocType(_) => return Err("document types are not allowed".to_owned()),
                Event::Eof => return Err("unexpected end of document".to_owned()),
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => None,
            };
            if let Some(element) = done {
                match open.last_mut() {
                    Some(parent) => parent.children.push(element),
                    // Anything after the root is ignored.
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
        // An element with another name is unknown, and its name is never echoed.
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        match !name.is_empty() && name.chars().all(fine) {
            true => Ok(Element { name, kind, ..Element::default() }),
            false => Err("invalid element name".to_owned()),
        }
    }

    /// The description in the content of an Atom entry.
    pub fn description(bytes: &[u8]) -> Result<Element, String> {
        let mut entry = Element::parse(bytes)?;
        if entry.name != "entry" {
            return Err("the root element is not `entry`".to_owned());
        }
        let content = entry.children.iter_mut().find(|child| child.name == "content");
        let content = content.ok_or("the entry has no content")?;
        match content.children.is_empty() {
            true => Err("the content is empty".to_owned()),
            false => Ok(content.children.swap_remove(0)),
        }
    }

    /// The first child with this name.
    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The text of a child.
    pub fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| child.text.as_str())
    }

    /// The content as XML. The enclosing document must declare the prefix `i`.
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
        None => return Err("text before the root element".to_owned()),
    }
    Ok(())
}

fn check(text: &str) -> Result<(), String> {
    match text.chars().any(is_forbidden) {
        true => Err("a character that XML does not allow".to_owned()),
        false => Ok(()),
    }
}

fn is_forbidden(c: char) -> bool {
    matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}')
}

/// Escapes text for an element or attribute. Characters that XML does not allow are replaced.
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

/// Like [`escape`], as a new string.
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
    fn prefixes_are_dropped_and_types_are_read() {
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
    fn invalid_documents_are_refused_with_a_reason() {
        for (text, why) in [
            ("", "unexpected end of document"),
            ("text", "text before the root element"),
            ("<a>", "unexpected end of document"),
            ("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>", "document types are not allowed"),
            ("<a>&b;</a>", "unknown entity reference"),
            ("<a>&#1;</a>", "a character that XML does not allow"),
        ] {
            assert_eq!(error(text), why, "{text}");
        }
        for text in ["<a></b>", "<a", "</a>", "<a b=c/>", "<a>&</a>", "<a<b/>", "<a\"/>", "<x:/>"] {
            error(text);
        }
        assert_eq!(Element::parse(b"<a>\xff</a>").unwrap_err(), "not valid UTF-8");
    }

    #[test]
    fn the_size_of_documents_is_limited() {
        let deep = |n: usize| format!("{}{}", "<a>".repeat(n), "</a>".repeat(n));
        Element::parse(deep(DEPTH_MAX).as_bytes()).unwrap();
        error(&deep(DEPTH_MAX + 1));
        error(&deep(100_000));
        error(&format!("<a>{}</a>", "<b/>".repeat(ELEMENTS_MAX)));
    }

    #[test]
    fn escaped_text_round_trips() {
        let text = "a<b>&\"'\r\n\tü";
        let again = Element::parse(format!("<a>{}</a>", escaped(text)).as_bytes()).unwrap();
        assert_eq!(again.text, text);
        assert_eq!(escaped("\u{1}x"), "\u{fffd}x");
    }
}
