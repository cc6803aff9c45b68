//! Prompts as a site sees them: model cards, rendering and tokenising.
//!
//! A relay makes a [`Card`] of its site's model directory; an edge loads the card into a
//! [`Prompter`] and turns request bodies into the token ids that the site's engine will see,
//! with the same crates at the same versions. [`Cards`] keeps an edge's loaded cards.
//!
//! Nothing here touches the network: a card brings every file it needs, and one that lacks
//! a file is refused with its name. Nothing here is async; loading takes seconds and
//! rendering up to some milliseconds, so callers choose their threads.

mod card;
mod cards;
mod chat;
mod encoder;
mod kind;
mod media;
mod memo;
mod prompt;
mod prompter;
mod request;
mod thinking;
mod verify;

pub use card::{
    Card, CardError, CardOptions, ChatRules, ContextMixin, DefaultThinking, Digest, Software,
    TokenizerBackend, Unsupported, local_time_zone,
};
pub use cards::{CardState, Cards, CardsConfig};
pub use encoder::EncoderKind;
pub use memo::MemoStats;
pub use prompt::{Prompt, PromptError, Source, cache_namespace};
pub use prompter::{LoadError, LoadOptions, Prompter};
