//! Names of things: sites, relays, edges, regions, models and pools.
//!
//! Names come from certificates, configuration and model cards, so each constructor checks
//! its text; past it a name is known to be short and printable. Models and pools also have
//! a 64-bit id, which is what the wire and the hot path carry.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// Why a text is no name. The caller's input is at fault; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// The text has no characters.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// The text is longer than the limit for its kind.
    #[error("{length} bytes are too many for a {kind}, which has at most {limit}")]
    TooLong {
        /// What was being named.
        kind: &'static str,
        /// Most bytes allowed.
        limit: usize,
        /// Bytes found.
        length: usize,
    },
    /// A character that the kind does not allow.
    #[error("{character:?} is not allowed in a {kind}")]
    Character {
        /// What was being named.
        kind: &'static str,
        /// The first offending character.
        character: char,
    },
}

fn checked(
    kind: &'static str,
    limit: usize,
    text: &str,
    allowed: fn(char) -> bool,
) -> Result<Arc<str>, NameError> {
    if text.is_empty() {
        return Err(NameError::Empty(kind));
    }
    if text.len() > limit {
        return Err(NameError::TooLong {
            kind,
            limit,
            length: text.len(),
        });
    }
    match text.chars().find(|c| !allowed(*c)) {
        Some(character) => Err(NameError::Character { kind, character }),
        None => Ok(text.into()),
    }
}

fn is_identifier(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

fn is_printable(c: char) -> bool {
    !c.is_control()
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $limit:literal, $allowed:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            #[doc = concat!("Checks that `text` can name a ", $kind, ".")]
            pub fn new(text: &str) -> Result<Self, NameError> {
                checked($kind, $limit, text, $allowed).map(Self)
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($type), &self.0)
            }
        }
    };
}

name!(
    /// A place that serves: letters, digits, `-`, `_` and `.`, at most 63.
    SiteId, "site id", 63, is_identifier
);
name!(
    /// A sidecar beside one of a site's frontends.
    RelayId, "relay id", 63, is_identifier
);
name!(
    /// A router in a region.
    EdgeId, "edge id", 63, is_identifier
);
name!(
    /// A part of the world, as the operator names it.
    Region, "region", 63, is_identifier
);
name!(
    /// A model as clients ask for it, at most 256 bytes.
    ModelName, "model name", 256, is_printable
);

impl ModelName {
    /// The id that stands for this name on the wire.
    pub fn id(&self) -> ModelId {
        ModelId(name_hash(self.as_str()))
    }
}

/// A stable 64-bit number for a text, where an id is needed and no name is at hand.
pub fn name_hash(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// A model's name as 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u64);

/// A pool of blocks, unique within its site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64);

impl PoolId {
    /// The id of the pool that this text describes.
    pub fn of_text(description: &str) -> Self {
        Self(xxh3_64(description.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_text() {
        assert_eq!(SiteId::new("fra-1").unwrap().as_str(), "fra-1");
        assert_eq!(
            ModelName::new("org/model v2").unwrap().as_str(),
            "org/model v2"
        );
    }

    #[test]
    fn an_error_names_the_kind_and_the_fault() {
        assert_eq!(
            SiteId::new("").unwrap_err().to_string(),
            "the site id is empty"
        );
        assert_eq!(
            RelayId::new("fra/1").unwrap_err().to_string(),
            "'/' is not allowed in a relay id"
        );
        assert_eq!(
            RelayId::new(&"e".repeat(64)).unwrap_err().to_string(),
            "64 bytes are too many for a relay id, which has at most 63"
        );
    }

    #[test]
    fn equal_names_have_equal_model_ids() {
        let id = |name: &str| ModelName::new(name).unwrap().id();

        assert_eq!(id("a"), id("a"));
        assert_ne!(id("a"), id("b"));
    }
}
