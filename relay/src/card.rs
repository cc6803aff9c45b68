//! The card of the site's model: made from a local directory (here), or of what the site's
//! workers say of it in Dynamo's discovery (`discovered`).

use std::path::Path;

use bytes::Bytes;
use kvgrid_core::ModelName;
use kvgrid_core::block::HashFormat;
use kvgrid_core::view::{CardDigest, CardInfo};
use kvgrid_prompt::{Card, CardError, CardOptions};
use kvgrid_runtime::config::ConfigError;

mod discovered;
mod plan;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use discovered::{Wanted, follow};
pub(crate) use plan::Overrides;

/// A card and its encoding, as edges ask for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SiteCard {
    /// The name clients ask for.
    pub(crate) model: ModelName,
    /// What routing needs of it.
    pub(crate) info: CardInfo,
    /// The encoding that its digest names.
    pub(crate) bytes: Bytes,
    /// Why edges of this version can't tokenise by it, if so.
    pub(crate) unsupported: Option<String>,
}

/// The card as of now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CardReport {
    /// The card, if there is one.
    pub(crate) card: Option<SiteCard>,
    /// Where it comes from, or why there is none.
    pub(crate) state: CardState,
    /// What keeps prompts from being tokenised, if anything does.
    pub(crate) reason: Option<String>,
}

/// Where a card comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CardState {
    /// Nobody has told one.
    #[default]
    Missing,
    /// The configuration or a live worker tells it.
    Current,
    /// No worker is alive; it was told before.
    Remembered,
    /// What workers tell is not supported here.
    Unsupported,
    /// What workers tell can't be had.
    Unreachable,
}

impl CardState {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [
        Self::Missing,
        Self::Current,
        Self::Remembered,
        Self::Unsupported,
        Self::Unreachable,
    ];
}

impl SiteCard {
    /// Reads the model's files; this takes a moment.
    pub(crate) fn read(
        dir: &Path,
        model: &ModelName,
        options: &CardOptions,
    ) -> Result<Self, ConfigError> {
        Card::from_model_dir(dir, options.clone())
            .and_then(|card| Self::of(&card, model.clone()))
            .map_err(|error| wrong_card(dir, &error))
    }

    /// Encodes a card; this takes a moment too.
    fn of(card: &Card, model: ModelName) -> Result<Self, CardError> {
        let bytes = card.encode();
        if bytes.len() > Card::MAX_BYTES {
            let (bytes, limit) = (bytes.len(), Card::MAX_BYTES);
            return Err(CardError::TooLarge { bytes, limit });
        }
        let format = if card.eagle {
            HashFormat::Eagle
        } else {
            HashFormat::Standard
        };
        let info = CardInfo {
            digest: CardDigest(Card::digest_of(&bytes)),
            block_size: card.block_size,
            format,
            capacity_blocks: Some(card.capacity_blocks).filter(|blocks| *blocks > 0),
            context_length: card.context_length.try_into().ok(),
            usable: false,
        };
        Ok(Self {
            model,
            info,
            bytes: bytes.into(),
            unsupported: card.supported().err().map(|error| error.to_string()),
        })
    }
}

impl CardReport {
    /// Of a card that the configuration names.
    pub(crate) fn configured(card: SiteCard) -> Self {
        Self {
            reason: card.unsupported.clone(),
            card: Some(card),
            state: CardState::Current,
        }
    }
}

fn wrong_card(dir: &Path, error: &CardError) -> ConfigError {
    let reason = format!("{}: {error}", dir.display());
    ConfigError::key("card.dir", &reason)
}
