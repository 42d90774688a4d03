//! Texts of errors: shortened, with their causes, and of panics.

use std::any::Any;
use std::error::Error;

/// The longest prefix of at most `bytes_max` bytes that ends between two characters.
pub(crate) fn clip(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// An error and its causes, separated by colons. A cause that the text contains already is left out.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// The error of an attempt whose handler panicked.
pub(crate) fn of_panic(panic: Option<Box<dyn Any + Send>>) -> String {
    let message = panic.and_then(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
    });
    match message {
        Some(message) => format!("the handler panicked: {message}"),
        None => "the handler panicked without a message".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(clip("añb", 2), "a");
        assert_eq!(clip("añb", 3), "añ");
        assert_eq!(clip("ab", 9), "ab");
    }

    #[test]
    fn causes_follow_the_error_unless_it_contains_them() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot open the file")]
        struct Outer(#[source] std::fmt::Error);
        let cause = std::fmt::Error;
        assert_eq!(with_causes(&Outer(cause)), format!("cannot open the file: {cause}"));
        #[derive(Debug, thiserror::Error)]
        #[error("cannot write: {0}")]
        struct Whole(#[source] std::fmt::Error);
        assert_eq!(with_causes(&Whole(cause)), format!("cannot write: {cause}"));
    }
}
