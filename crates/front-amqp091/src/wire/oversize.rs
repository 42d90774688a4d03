//! Headers that do not fit into a frame.
//!
//! A content header cannot be cut into several frames. Messages of other protocols, and dead letters with a long history,
//! can have more headers than a client's frames hold, and such a frame would end the connection again and again.

use std::borrow::Cow;

use super::frame::FRAME_OVERHEAD_BYTES;
use super::properties::{BasicProperties, Properties};
use super::table::{ArrayBuilder, FieldTable, FieldValue};
use crate::limits::{FRAME_BYTES_MIN, OMITTED_NAMES_BYTES_MAX};

/// Lists the headers that were left out.
pub const OMITTED: &str = "x-malote-omitted";
/// Class, weight and body size.
const FIXED_BYTES: usize = 12;
/// The tag and the length of an array, and its name with a length.
const OMITTED_FIELD_BYTES: usize = 1 + OMITTED.len() + 1 + 4;
/// The length of a table.
const TABLE_LENGTH_BYTES: usize = 4;

/// The properties as they fit into one frame of `frame_max` bytes. If not all headers fit, the largest are
/// omitted.
pub fn fitting(properties: &Properties, frame_max: u32) -> Cow<'_, Properties> {
    let frame_max = frame_max.max(FRAME_BYTES_MIN) as usize;
    let room = frame_max - FRAME_OVERHEAD_BYTES - FIXED_BYTES;
    if properties.as_bytes().len() <= room {
        return Cow::Borrowed(properties);
    }
    let given = properties.decode();
    let others = BasicProperties { headers: None, ..given }.encode().as_bytes().len();
    let marker = OMITTED_FIELD_BYTES + OMITTED_NAMES_BYTES_MAX;
    let room = room.saturating_sub(others + TABLE_LENGTH_BYTES + marker);
    let headers = given.headers.unwrap_or_default();
    let mut sizes: Vec<(usize, usize)> =
        headers.fields().enumerate().map(|(at, field)| (field.encoded_bytes(), at)).collect();
    sizes.sort_unstable();
    let mut kept = vec![false; sizes.len()];
    let mut used = 0;
    for (bytes, at) in sizes {
        used += bytes;
        if used > room {
            break;
        }
        kept[at] = true;
    }
    let mut keep = kept.iter().copied();
    let mut table = FieldTable::builder();
    table.copy(headers, |name| keep.next() == Some(true) && name != OMITTED);
    let mut names = ArrayBuilder::default();
    let omitted = headers.fields().zip(&kept).filter(|(_, kept)| !**kept);
    for (field, _) in omitted {
        let name = FieldValue::from(field.name);
        if names.values().as_bytes().len() + 1 + 4 + field.name.len() > OMITTED_NAMES_BYTES_MAX {
            break;
        }
        names.put(name);
    }
    table.put(OMITTED, names.values());
    let table = table.build();
    Cow::Owned(BasicProperties { headers: Some(table.as_table()), ..given }.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME_MAX: u32 = 4_096;

    fn with_headers(sizes: &[usize]) -> Properties {
        let mut table = FieldTable::builder();
        for (at, size) in sizes.iter().enumerate() {
            table.put(&format!("h{at}"), "x".repeat(*size).as_str());
        }
        let table = table.build();
        let headers = Some(table.as_table());
        BasicProperties { headers, message_id: Some(b"m"), ..BasicProperties::default() }.encode()
    }

    fn names(properties: &Properties) -> String {
        let headers = properties.decode().headers.unwrap_or_default();
        let kept: Vec<_> = headers.fields().map(|field| field.name).collect();
        let omitted = headers.get(OMITTED).and_then(FieldValue::as_array).unwrap_or_default();
        let omitted: Vec<_> = omitted.filter_map(FieldValue::as_str).collect();
        format!("{} without {}", kept.join(" "), omitted.join(" "))
    }

    #[test]
    fn properties_that_fit_are_not_copied() {
        // Flags, message id, the length of the table, and the header beside its text.
        let most = FRAME_MAX as usize - FRAME_OVERHEAD_BYTES - FIXED_BYTES - 2 - 2 - 4 - 8;
        let properties = with_headers(&[most]);
        assert!(matches!(fitting(&properties, FRAME_MAX), Cow::Borrowed(_)));
        assert!(matches!(fitting(&with_headers(&[most + 1]), FRAME_MAX), Cow::Owned(_)));
    }

    #[test]
    fn the_largest_headers_are_left_out_and_listed() {
        let fits = |sizes: &[usize]| {
            let properties = with_headers(sizes);
            let fitting = fitting(&properties, FRAME_MAX).into_owned();
            let bytes = fitting.as_bytes().len() + FIXED_BYTES + FRAME_OVERHEAD_BYTES;
            assert!(bytes <= FRAME_MAX as usize, "{bytes}");
            assert_eq!(fitting.decode().message_id, Some(&b"m"[..]));
            names(&fitting)
        };
        assert_eq!(fits(&[100, 200_000, 7]), "h0 h2 x-malote-omitted without h1");
        assert_eq!(fits(&[1_500, 1_000, 1_600]), "h0 h1 x-malote-omitted without h2");
        let many = fits(&vec![90; 10_000]);
        assert!(many.starts_with("h0 h1 h2 "), "{many}");
    }

    #[test]
    fn other_properties_of_any_size_fit() {
        let long = [b'x'; 255];
        let text = Some(&long[..]);
        let table = FieldTable::builder().with("h", "x".repeat(9_000).as_str()).build();
        let properties = BasicProperties {
            content_type: text,
            content_encoding: text,
            headers: Some(table.as_table()),
            correlation_id: text,
            reply_to: text,
            expiration: text,
            message_id: text,
            kind: text,
            user_id: text,
            app_id: text,
            cluster_id: text,
            ..BasicProperties::default()
        }
        .encode();
        let fitting = fitting(&properties, FRAME_MAX);
        assert!(fitting.as_bytes().len() + FIXED_BYTES + FRAME_OVERHEAD_BYTES <= 4_096);
        assert_eq!(names(&fitting), "x-malote-omitted without h");
    }
}
