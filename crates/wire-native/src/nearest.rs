//! Suggestions for misspelled words ("did you mean …?").

/// The known word with the smallest edit distance to `word`, if the distance is at most a third of its length.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(128).collect();
    let far = (word.len() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|&(distance, _)| distance <= far)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// The Levenshtein distance.
fn distance(word: &[char], candidate: &str) -> usize {
    let mut row: Vec<usize> = (0..=word.len()).collect();
    for (i, c) in candidate.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, w) in word.iter().enumerate() {
            let replaced = corner + usize::from(*w != c);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[word.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_similar_words_only() {
        let known = ["session", "subject", "ttl_ms", "to"];
        assert_eq!(nearest("sesion", known), Some("session"));
        assert_eq!(nearest("ttl", known), None);
        assert_eq!(nearest("ttl_m", known), Some("ttl_ms"));
        assert_eq!(nearest("banana", known), None);
        assert_eq!(nearest("", known), None);
    }
}
