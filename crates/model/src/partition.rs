//! Maps keys to sessions, identically in every language and after every restart.
//!
//! `index = jump(xxh3_64(seed 0, UTF-8 bytes of the key), n)`, where `jump` is the jump consistent hash of Lamping and
//! Veach: growing the list from n to n + 1 moves only 1/(n + 1) of the keys. `VECTORS` is published in the docs.

use xxhash_rust::xxh3::xxh3_64;

/// The index of the session for `key` in a list of `n` sessions; 0 for `n` = 0.
pub fn partition_of(key: &str, n: u32) -> u32 {
    jump(xxh3_64(key.as_bytes()), n)
}

fn jump(mut key: u64, n: u32) -> u32 {
    let (mut bucket, mut next) = (0_i64, 0_i64);
    while next < i64::from(n) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let scale = (1_u64 << 31) as f64 / ((key >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * scale) as i64;
    }
    bucket as u32
}

/// Test vectors for other languages: key, number of sessions, index.
pub const VECTORS: &[(&str, u32, u32)] = &[
    ("", 8, 0),
    ("a", 8, 1),
    ("customer-1", 8, 3),
    ("customer-2", 8, 5),
    ("customer-1", 1, 0),
    ("customer-1", 100, 30),
    ("пошта", 16, 13),
    ("order-42", 1000, 994),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_hold() {
        let now: Vec<_> =
            VECTORS.iter().map(|&(key, n, _)| (key, n, partition_of(key, n))).collect();
        assert_eq!(now, VECTORS);
    }

    #[test]
    fn growing_the_list_moves_few_keys_and_only_to_the_new_place() {
        let keys = (0..10_000).map(|i| format!("key-{i}"));
        let moved: Vec<_> = keys.filter(|k| partition_of(k, 9) != partition_of(k, 10)).collect();
        assert!(moved.iter().all(|k| partition_of(k, 10) == 9));
        assert!((800..1200).contains(&moved.len()), "{}", moved.len());
    }

    #[test]
    fn no_list_has_place_zero() {
        assert_eq!(partition_of("x", 0), 0);
    }
}
