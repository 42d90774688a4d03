//! Suggestions for misspelt words ("did you mean").

/// The candidate with the smallest edit distance, if it is similar enough.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // With more than a third of the letters wrong, it is probably another word.
    let distance_max = (word.chars().count() / 3).max(1);
    candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= distance_max)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edit distance in which a swap of neighbours counts as one (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = last;
        last = row;
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_only_similar_words() {
        let words = ["http", "tls.cert", "limits.connections"];
        let near = |word| nearest(word, words.into_iter());
        assert_eq!(near("htpt"), Some("http"));
        assert_eq!(near("tls.crt"), Some("tls.cert"));
        assert_eq!(near("limits.conections"), Some("limits.connections"));
        assert_eq!(near("HTTP"), Some("http"));
        assert_eq!(near("colour"), None);
        assert_eq!(near(""), None);
    }
}
