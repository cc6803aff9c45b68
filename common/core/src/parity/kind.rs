//! Kinds of request, by what of a request decides how a site makes tokens of it.

use core::fmt;

/// Something about a request that sites render or tokenise by rules of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trait {
    /// A text without messages: no chat template.
    Text,
    /// The client's own token ids: no tokenizer either.
    Ids,
    /// Tools are offered, or were called.
    Tools,
    /// It says how to reason, sets arguments of the template, or has reasoning in its messages.
    Reasoning,
    /// Some message's content is an array of parts.
    Arrays,
    /// Some part is an image, a video or a sound.
    Media,
    /// The model is an adapter.
    Adapter,
}

impl Trait {
    /// Every trait.
    pub const ALL: [Self; 7] = [
        Self::Text,
        Self::Ids,
        Self::Tools,
        Self::Reasoning,
        Self::Arrays,
        Self::Media,
        Self::Adapter,
    ];

    /// A short name, for metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Ids => "ids",
            Self::Tools => "tools",
            Self::Reasoning => "reasoning",
            Self::Arrays => "arrays",
            Self::Media => "media",
            Self::Adapter => "adapter",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of traits; the empty one is a plain chat. There are 128 kinds at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(u8);

impl Kind {
    /// A chat of nothing but texts.
    pub const PLAIN: Self = Self(0);
    /// All traits at once.
    pub const ALL: Self = Self((1 << Trait::ALL.len()) - 1);

    /// The kind that has this trait besides.
    #[must_use]
    pub const fn with(self, has: Trait) -> Self {
        Self(self.0 | has.bit())
    }

    /// The same, if so.
    #[must_use]
    pub const fn with_if(self, has: Trait, so: bool) -> Self {
        if so { self.with(has) } else { self }
    }

    /// Whether it has a trait.
    pub const fn has(self, which: Trait) -> bool {
        self.0 & which.bit() != 0
    }
}

/// Its traits' names, such as `tools+arrays`; `plain` if it has none.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::PLAIN {
            return f.write_str("plain");
        }
        let traits = Trait::ALL.into_iter().filter(|which| self.has(*which));
        for (place, which) in traits.enumerate() {
            f.write_str(if place == 0 { "" } else { "+" })?;
            f.write_str(which.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_called_by_its_traits() {
        let kind = Kind::PLAIN.with(Trait::Arrays).with(Trait::Tools);

        assert_eq!(kind.to_string(), "tools+arrays");
        assert_eq!(Kind::PLAIN.to_string(), "plain");
        assert!(Trait::ALL.into_iter().all(|which| Kind::ALL.has(which)));
    }
}
