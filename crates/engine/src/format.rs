//! The format number of a data directory: which records and snapshots a version of Malote may have written there.
//!
//! Every segment header and every snapshot contains the format of the version that wrote it, so an older version
//! refuses the directory instead of skipping unknown data. Opening a directory raises it to [`FORMAT`] at once: a
//! version can be replaced by an older one exactly if both have the same number (docs/operations/upgrade.md).
//!
//! To add a record kind or a record version, append a [`Format`] with the next number to [`FORMATS`] and list only what
//! is new. Released formats never change; the test below contains them.

/// What a format added to the previous one.
pub(crate) struct Format {
    pub(crate) number: u32,
    /// Record kinds, each with the newest version of its layout. Versions begin with 1.
    pub(crate) records: &'static [(u8, u8)],
    /// The newest version of the core's snapshot.
    pub(crate) snapshot: u8,
}

/// All formats, oldest first.
pub(crate) const FORMATS: &[Format] = &[
    Format {
        number: 1,
        records: &[
            (1, 1),
            (2, 2),
            (3, 2),
            (4, 1),
            (5, 1),
            (6, 2),
            (7, 2),
            (8, 1),
            (9, 3),
            (10, 1),
            (11, 1),
            (12, 1),
            (13, 2),
            (14, 1),
            (15, 1),
            (16, 2),
            (17, 2),
            (18, 1),
            (19, 1),
            (20, 1),
            (21, 2),
            (64, 2),
        ],
        snapshot: 3,
    },
    // Adds digests of the state.
    Format { number: 2, records: &[(22, 1)], snapshot: 3 },
    // Adds the time of a settings change, and `known_from` of de-duplication keys.
    Format { number: 3, records: &[(3, 3), (21, 3)], snapshot: 4 },
    // Forward steps of the clock.
    Format { number: 4, records: &[(23, 1)], snapshot: 4 },
    // Transient queues and topics, single active consumers, alternate topics, hash topics, rules between topics, several
    // routing keys, and the topics of dead letters.
    Format {
        number: 5,
        records: &[(2, 3), (3, 4), (7, 3), (13, 3), (17, 3), (19, 2), (21, 4), (64, 3)],
        snapshot: 5,
    },
    // Queues that take the session of a message from one of its fields.
    Format { number: 6, records: &[(2, 4), (3, 5)], snapshot: 6 },
];

/// The format that this version writes. It reads all formats up to it.
pub const FORMAT: u32 = FORMATS[FORMATS.len() - 1].number;

/// The snapshot version that this version writes.
pub(crate) const SNAPSHOT_VERSION: u8 = FORMATS[FORMATS.len() - 1].snapshot;

/// The newest known version of each record kind; 0 for unknown kinds.
const NEWEST: [u8; 256] = {
    let mut newest = [0; 256];
    let mut format = 0;
    while format < FORMATS.len() {
        let records = FORMATS[format].records;
        let mut at = 0;
        while at < records.len() {
            newest[records[at].0 as usize] = records[at].1;
            at += 1;
        }
        format += 1;
    }
    newest
};

/// Whether a record of this kind and version can be read.
pub(crate) const fn is_known(kind: u8, version: u8) -> bool {
    version >= 1 && version <= NEWEST[kind as usize]
}

/// A record that cannot be decoded. Its checksum is correct, so the disk did not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstood {
    /// The kind or version is unknown.
    #[error("has kind {kind} and version {version}, which this version of Malote does not know")]
    Unknown { kind: u8, version: u8 },
    /// The kind and version are known, but the content is malformed.
    #[error("has kind {kind} and version {version}, but its content is malformed")]
    Malformed { kind: u8, version: u8 },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Released formats must not change. A new kind or version of a record, or a new snapshot version, is a new format:
    /// add a line here, and change none.
    #[test]
    fn released_formats_do_not_change() {
        let released: &[(u32, &str)] = &[
            (
                1,
                "1.1 2.2 3.2 4.1 5.1 6.2 7.2 8.1 9.3 10.1 11.1 12.1 13.2 14.1 15.1 16.2 17.2 18.1 19.1 20.1 21.2 64.2 s3",
            ),
            (2, "22.1 s3"),
            (3, "3.3 21.3 s4"),
            (4, "23.1 s4"),
            (5, "2.3 3.4 7.3 13.3 17.3 19.2 21.4 64.3 s5"),
            (6, "2.4 3.5 s6"),
        ];
        let text = |format: &Format| {
            let records = format.records.iter().map(|(kind, version)| format!("{kind}.{version}"));
            let all: Vec<_> = records.chain([format!("s{}", format.snapshot)]).collect();
            all.join(" ")
        };
        let formats: Vec<_> = FORMATS.iter().map(|format| (format.number, text(format))).collect();
        let formats: Vec<_> =
            formats.iter().map(|(number, text)| (*number, text.as_str())).collect();
        assert_eq!(formats, released);
    }

    #[test]
    fn numbers_and_versions_only_grow() {
        for (at, format) in FORMATS.iter().enumerate() {
            assert_eq!(format.number as usize, at + 1);
            let before = |kind: u8| {
                let records = FORMATS[..at].iter().flat_map(|format| format.records);
                records.filter(|(of, _)| *of == kind).map(|(_, version)| *version).max()
            };
            for &(kind, version) in format.records {
                assert!(before(kind) < Some(version), "format {} kind {kind}", format.number);
                assert!(kind != crate::journal::KIND_MARK, "kind 0 is the journal's own");
            }
            assert!(at == 0 || format.snapshot >= FORMATS[at - 1].snapshot);
        }
        assert!(is_known(9, 3) && !is_known(9, 4) && !is_known(9, 0) && !is_known(200, 1));
    }
}
