//! Labels of sites, and the rules that say which sites may serve.
//!
//! A site's labels come from its relays' certificates or from an edge's own configuration,
//! never from what a relay claims. Rules fail closed: a site that lacks the label a rule
//! speaks of is refused, also by a rule that only forbids values, because nobody knows that
//! the forbidden value is not the site's. Rules of an edge's policy, of a tenant and of a
//! request are checked one after the other; all must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::id::{NameError, Region};

/// Most bytes of a label's key or value.
const TEXT_LIMIT: usize = 63;
/// Most labels of a site.
const LABELS_LIMIT: usize = 32;

/// Why something is no label or rule. The caller's input is at fault; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LabelError {
    /// A key or value is empty, too long or has characters outside letters, digits, `-_.`.
    #[error("{0:?} is no label text: 1 to 63 letters, digits, '-', '_' or '.'")]
    Text(String),
    /// A site would have more labels than a site may have.
    #[error("more than 32 labels")]
    TooMany,
    /// A rule is not of the form `key=a|b` or `key!=a|b`.
    #[error("{0:?} is no label rule: write key=value, key=a|b or key!=value")]
    Rule(String),
    /// A region's name is not one.
    #[error(transparent)]
    Region(#[from] NameError),
}

/// A site's labels: country, provider, zone and whatever else its operator certifies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<Arc<str>, Arc<str>>);

impl Labels {
    /// No labels.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Labels from pairs; a key named twice keeps its last value.
    pub fn from_pairs<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, LabelError> {
        let mut labels = Self::new();
        for (key, value) in pairs {
            labels.insert(key, value)?;
        }
        Ok(labels)
    }

    /// Sets a label.
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), LabelError> {
        let (key, value) = (text(key)?, text(value)?);
        if self.0.len() >= LABELS_LIMIT && !self.0.contains_key(&key) {
            return Err(LabelError::TooMany);
        }
        self.0.insert(key, value);
        Ok(())
    }

    /// A label's value.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(AsRef::as_ref)
    }

    /// All labels, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

/// What a rule demands of one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelRule {
    /// The label is present and has one of these values.
    In(Arc<str>, BTreeSet<Arc<str>>),
    /// The label is present and has none of these values.
    NotIn(Arc<str>, BTreeSet<Arc<str>>),
}

impl LabelRule {
    /// The label the rule speaks of.
    pub fn key(&self) -> &str {
        match self {
            Self::In(key, _) | Self::NotIn(key, _) => key,
        }
    }

    fn holds(&self, labels: &Labels) -> bool {
        let Some(value) = labels.get(self.key()) else {
            return false;
        };
        match self {
            Self::In(_, values) => values.contains(value),
            Self::NotIn(_, values) => !values.contains(value),
        }
    }
}

impl FromStr for LabelRule {
    type Err = LabelError;

    fn from_str(rule: &str) -> Result<Self, LabelError> {
        let malformed = || LabelError::Rule(rule.to_owned());
        let (key, values, negated) = match rule.split_once("!=") {
            Some((key, values)) => (key, values, true),
            None => {
                let (key, values) = rule.split_once('=').ok_or_else(malformed)?;
                (key, values, false)
            }
        };
        let key = text(key.trim())?;
        let values = values
            .split('|')
            .map(|value| text(value.trim()))
            .collect::<Result<_, _>>()?;
        Ok(if negated {
            Self::NotIn(key, values)
        } else {
            Self::In(key, values)
        })
    }
}

impl fmt::Display for LabelRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, sign, values) = match self {
            Self::In(key, values) => (key, "=", values),
            Self::NotIn(key, values) => (key, "!=", values),
        };
        let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
        write!(f, "{key}{sign}{}", values.join("|"))
    }
}

/// Which sites may serve: regions and labels, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteRules {
    /// Regions allowed; `None` allows all, an empty set none.
    pub regions: Option<BTreeSet<Region>>,
    /// Rules on labels.
    pub labels: Vec<LabelRule>,
}

/// The rule that a site breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The site's region is not allowed, or not known.
    Region,
    /// The site's labels break this rule, or lack its label.
    Label(LabelRule),
}

impl SiteRules {
    /// Whether no site can break them.
    pub const fn allow_all(&self) -> bool {
        self.regions.is_none() && self.labels.is_empty()
    }

    /// Whether a site of this region and these labels may serve.
    pub fn check(&self, region: Option<&Region>, labels: &Labels) -> Result<(), Violation> {
        if let Some(allowed) = &self.regions
            && !region.is_some_and(|region| allowed.contains(region))
        {
            return Err(Violation::Region);
        }
        match self.labels.iter().find(|rule| !rule.holds(labels)) {
            Some(rule) => Err(Violation::Label(rule.clone())),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region => f.write_str("region not allowed"),
            Self::Label(rule) => write!(f, "label not {rule}"),
        }
    }
}

fn text(text: &str) -> Result<Arc<str>, LabelError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > TEXT_LIMIT || !text.chars().all(allowed) {
        return Err(LabelError::Text(text.chars().take(TEXT_LIMIT).collect()));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(regions: Option<&[&str]>, labels: &[&str]) -> SiteRules {
        SiteRules {
            regions: regions.map(|names| {
                let region = |name: &&str| Region::new(name).unwrap();
                names.iter().map(region).collect()
            }),
            labels: labels.iter().map(|rule| rule.parse().unwrap()).collect(),
        }
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::from_pairs(pairs.iter().copied()).unwrap()
    }

    #[test]
    fn no_rules_allow_a_site_without_labels() {
        assert_eq!(rules(None, &[]).check(None, &Labels::new()), Ok(()));
    }

    #[test]
    fn an_unknown_region_breaks_a_region_rule() {
        let eu_only = rules(Some(&["eu"]), &[]);
        let region = |name| Region::new(name).unwrap();

        assert_eq!(eu_only.check(Some(&region("eu")), &Labels::new()), Ok(()));
        for other in [None, Some(&region("us"))] {
            assert_eq!(
                eu_only.check(other, &Labels::new()),
                Err(Violation::Region),
                "{other:?}"
            );
        }
    }

    #[test]
    fn an_empty_set_of_regions_allows_no_site() {
        let nowhere = rules(Some(&[]), &[]);
        let eu = Region::new("eu").unwrap();

        assert_eq!(
            nowhere.check(Some(&eu), &Labels::new()),
            Err(Violation::Region)
        );
    }

    #[test]
    fn a_missing_label_breaks_every_rule_about_it() {
        for rule in ["country=de", "country!=us"] {
            let rules = rules(None, &[rule]);
            assert!(rules.check(None, &Labels::new()).is_err(), "{rule}");
        }
    }

    #[test]
    fn label_rules_compare_values() {
        let rules = rules(None, &["country=de|fr", "provider != acme"]);
        let check = |country, provider| {
            rules
                .check(
                    None,
                    &labels(&[("country", country), ("provider", provider)]),
                )
                .map_err(|broken| broken.to_string())
        };

        assert_eq!(check("fr", "own"), Ok(()));
        assert_eq!(
            check("us", "own"),
            Err("label not country=de|fr".to_owned())
        );
        assert_eq!(
            check("de", "acme"),
            Err("label not provider!=acme".to_owned())
        );
    }

    #[test]
    fn malformed_rules_and_labels_are_refused() {
        for rule in ["country", "=de", "country=", "country=de|", "a b=c"] {
            assert!(rule.parse::<LabelRule>().is_err(), "{rule}");
        }
        assert!(Labels::from_pairs([("zone", "ü")]).is_err());
    }

    #[test]
    fn a_site_has_a_bounded_number_of_labels() {
        let keys: Vec<String> = (0..33).map(|i| format!("k{i}")).collect();
        let pairs = keys.iter().map(|key| (key.as_str(), "v"));

        assert_eq!(Labels::from_pairs(pairs), Err(LabelError::TooMany));
    }
}
