//! Reads Prometheus' text exposition, as far as load needs it.
//!
//! Lines that are no samples are passed over: a page is somebody else's, and one odd line must
//! not hide the load. Values that are not finite are left out.

/// One sample line.
#[derive(Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    /// The metric's name.
    pub(crate) name: &'a str,
    labels: Vec<(&'a str, String)>,
    /// Its value, always finite.
    pub(crate) value: f64,
}

impl Sample<'_> {
    /// The value of a label.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(label, _)| *label == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The samples on a page whose metrics `wanted` accepts by name.
pub(crate) fn samples<'a>(
    page: &'a str,
    wanted: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = Sample<'a>> {
    page.lines().filter_map(move |line| {
        let line = line.trim();
        let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
        let (name, rest) = line.split_at(end);
        if line.starts_with('#') || !wanted(name) {
            return None;
        }
        sample(name, rest)
    })
}

fn sample<'a>(name: &'a str, rest: &'a str) -> Option<Sample<'a>> {
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (Vec::new(), rest),
    };
    // A time stamp may follow the value.
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some(Sample {
        name,
        labels,
        value,
    })
}

/// The labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, value) = rest.split_once('=')?;
        let (value, after) = quoted(value.trim_start().strip_prefix('"')?)?;
        labels.push((name.trim(), value));
        rest = after;
    }
}

/// The text up to the closing quote with escapes resolved, and what follows the quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((index, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_a_name_labels_and_a_value() {
        let page = "# TYPE a gauge\na{x=\"1\",y=\"q\\\"u,o}te\"} 2.5 1700000000\nb 3\n";
        let found: Vec<_> = samples(page, |_| true).collect();

        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name, found[0].value), ("a", 2.5));
        assert_eq!(found[0].label("y"), Some("q\"u,o}te"));
        assert_eq!(found[0].label("z"), None);
        assert_eq!((found[1].name, found[1].value), ("b", 3.0));
    }

    #[test]
    fn odd_lines_are_passed_over() {
        let page = "\n{}\na{x=\"1\na{x}\na{x=\"1\"}\na NaN\na +Inf\nnothing\na{} 1\né{ü=\"\\";
        let found: Vec<_> = samples(page, |_| true).collect();

        assert_eq!(found.len(), 1);
        assert_eq!(found[0].value, 1.0);
    }
}
