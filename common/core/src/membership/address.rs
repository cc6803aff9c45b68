//! Where a relay can be reached, by scope.
//!
//! A scope is a network by the operator's name, such as `internet` or `vpc-1`. A relay
//! advertises one address or more in each; who dials knows which scopes it can reach and
//! in what order it wants to try them.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Most addresses of a relay, all scopes together.
const ENTRIES: usize = 4;
/// Most bytes of a scope's name.
const SCOPE_BYTES: usize = 16;
/// Most bytes of one address.
const ADDRESS_BYTES: usize = 80;
/// Most bytes of all addresses as sent, two bytes of lengths for each included. It keeps an
/// identity under 220 bytes, so that a packet has room for several.
const TOTAL_BYTES: usize = 144;

/// Why something is no scope or address. The caller's input is at fault; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// A scope is empty, too long or has other characters than it may have.
    #[error("{0:?} is no scope: 1 to 16 lowercase letters, digits or '-'")]
    Scope(String),
    /// An address is not of the form that can be dialled.
    #[error(
        "{0:?} is no address: write HOST:PORT or [IPV6]:PORT, at most 80 characters, port 1 to 65535"
    )]
    Address(String),
    /// The same address stands twice in the same scope.
    #[error("address {address} stands twice in scope {scope}")]
    Duplicate {
        /// The scope.
        scope: Scope,
        /// The address that was given again.
        address: String,
    },
    /// There are more addresses than a relay may have.
    #[error("more than 4 addresses")]
    TooMany,
    /// The addresses and their scopes are too long together to be gossiped.
    #[error("the addresses take {0} bytes together, of at most 144: name fewer or shorter ones")]
    TooLong(usize),
}

/// A network by its operator's name: 1 to 16 lowercase letters, digits or `-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// Checks that `text` can name a scope.
    pub fn new(text: &str) -> Result<Self, AddressError> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if text.is_empty() || text.len() > SCOPE_BYTES || !text.chars().all(allowed) {
            return Err(AddressError::Scope(shortened(text)));
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", &self.0)
    }
}

/// A relay's addresses in the order in which it gave them: at most 4, and 144 bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Addresses(Arc<[(Scope, Box<str>)]>);

impl Addresses {
    /// No addresses: a relay that only dials.
    pub fn none() -> Self {
        Self::default()
    }

    /// Addresses from pairs of scope and `HOST:PORT`. A scope may have several.
    pub fn new<'a>(
        entries: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, AddressError> {
        let mut list: Vec<(Scope, Box<str>)> = Vec::new();
        for (scope, address) in entries {
            if list.len() == ENTRIES {
                return Err(AddressError::TooMany);
            }
            let scope = Scope::new(scope)?;
            if !is_address(address) {
                return Err(AddressError::Address(shortened(address)));
            }
            if list.iter().any(|(s, a)| *s == scope && **a == *address) {
                let address = address.to_owned();
                return Err(AddressError::Duplicate { scope, address });
            }
            list.push((scope, address.into()));
        }
        let bytes = list.iter().map(|(s, a)| s.0.len() + a.len() + 2).sum();
        if bytes > TOTAL_BYTES {
            return Err(AddressError::TooLong(bytes));
        }
        Ok(Self(list.into()))
    }

    /// All addresses with their scopes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Scope, &str)> {
        self.0.iter().map(|(scope, address)| (scope, &**address))
    }

    /// The addresses that somebody can dial who reaches these scopes, the first scope's first.
    pub fn reachable<'a>(&'a self, wanted: &'a [Scope]) -> impl Iterator<Item = &'a str> {
        wanted.iter().flat_map(move |wanted| {
            self.iter()
                .filter_map(move |(scope, address)| (scope == wanted).then_some(address))
        })
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bracketed = host.len() > 2 && host.starts_with('[') && host.ends_with(']');
    let plain = !host.contains([':', '[', ']']);
    text.len() <= ADDRESS_BYTES
        && !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_graphic())
        && (bracketed || plain)
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// What an error repeats of a text: enough to find it.
fn shortened(text: &str) -> String {
    text.chars().take(ADDRESS_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(entries: &[(&str, &str)]) -> Result<Addresses, AddressError> {
        Addresses::new(entries.iter().copied())
    }

    #[test]
    fn reachable_addresses_follow_the_wanted_scopes() {
        let list = addresses(&[
            ("internet", "relay.example:7440"),
            ("vpc-1", "10.0.0.1:7440"),
            ("internet", "[2001:db8::1]:7440"),
            ("rack", "fra-1:7440"),
        ])
        .unwrap();
        let wanted = ["vpc-1", "absent", "internet"].map(|scope| Scope::new(scope).unwrap());

        let reachable: Vec<_> = list.reachable(&wanted).collect();

        let expected = ["10.0.0.1:7440", "relay.example:7440", "[2001:db8::1]:7440"];
        assert_eq!(reachable, expected);
    }

    #[test]
    fn what_cannot_be_dialled_is_refused() {
        for text in [
            "",
            "host",
            "host:",
            ":7440",
            "host:0",
            "host:65536",
            "host:+1",
            "host:1a",
            "::1:7440",
            "[]:7440",
            "a b:1",
            "h\u{e4}:1",
        ] {
            assert_eq!(
                addresses(&[("internet", text)]),
                Err(AddressError::Address(text.to_owned()))
            );
        }
        assert!(addresses(&[("internet", &format!("{}:7440", "h".repeat(75)))]).is_ok());
        assert!(addresses(&[("internet", &format!("{}:7440", "h".repeat(76)))]).is_err());
    }

    #[test]
    fn a_scope_is_short_and_lowercase() {
        for text in ["", "Internet", "a_b", "seventeen-letters"] {
            assert_eq!(Scope::new(text), Err(AddressError::Scope(text.to_owned())));
        }
    }

    #[test]
    fn too_many_too_long_and_repeated_addresses_are_told_apart() {
        let (a, b) = (("a", "host:1"), ("b", "host:1"));

        assert!(addresses(&[a, b]).is_ok());
        assert_eq!(
            addresses(&[a, b, a]).unwrap_err().to_string(),
            "address host:1 stands twice in scope a"
        );
        let five = [
            ("a", "h:1"),
            ("a", "h:2"),
            ("a", "h:3"),
            ("a", "h:4"),
            ("a", "h:5"),
        ];
        assert_eq!(addresses(&five), Err(AddressError::TooMany));
        let long = format!("{}:7440", "h".repeat(70));
        assert_eq!(
            addresses(&[("a", &long), ("b", &long)]),
            Err(AddressError::TooLong(156))
        );
    }
}
