//! The card of the site's model, made from a local directory.

use bytes::Bytes;
use kvgrid_core::ModelName;
use kvgrid_core::block::HashFormat;
use kvgrid_core::view::{CardDigest, CardInfo};
use kvgrid_prompt::{Card, CardError};
use kvgrid_runtime::config::ConfigError;

use crate::config::{CardSettings, CardTable};

/// A card and its encoding, as edges ask for it.
#[derive(Clone, Debug)]
pub(crate) struct SiteCard {
    /// The name clients ask for.
    pub(crate) model: ModelName,
    /// What routing needs of it.
    pub(crate) info: CardInfo,
    /// The encoding that its digest names.
    pub(crate) bytes: Bytes,
}

impl SiteCard {
    /// Reads the model's files; this takes a moment.
    pub(crate) fn read(table: &CardTable, settings: &CardSettings) -> Result<Self, ConfigError> {
        let card = Card::from_model_dir(&table.dir, settings.options.clone());
        let card = card.map_err(|error| wrong_card(table, &error))?;
        let bytes = card.encode();
        if bytes.len() > Card::MAX_BYTES {
            let (bytes, limit) = (bytes.len(), Card::MAX_BYTES);
            return Err(wrong_card(table, &CardError::TooLarge { bytes, limit }));
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
            model: settings.model.clone(),
            info,
            bytes: bytes.into(),
        })
    }
}

fn wrong_card(table: &CardTable, error: &CardError) -> ConfigError {
    let reason = format!("{}: {error}", table.dir.display());
    ConfigError::key("card.dir", &reason)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn read(dir: &Path) -> Result<SiteCard, ConfigError> {
        let table: CardTable = serde_json::from_value(serde_json::json!({
            "model": "tiny", "dir": dir, "block_size": 16, "capacity_blocks": 2048,
        }))
        .unwrap();
        let settings = CardSettings::of(&table).unwrap();
        SiteCard::read(&table, &settings)
    }

    fn fixture() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-chat")
    }

    #[test]
    fn a_card_is_what_its_digest_names() {
        let card = read(&fixture()).unwrap();

        let decoded = Card::decode(&card.bytes).unwrap();
        assert_eq!(decoded.digest(), card.info.digest.0);
        assert_eq!(decoded.model, "tiny");
        assert_eq!(card.info.block_size.get(), 16);
        assert_eq!(card.info.capacity_blocks, Some(2048));
    }

    #[test]
    fn a_directory_without_a_tokenizer_is_refused_by_key() {
        let empty = tempfile::tempdir().unwrap();

        let error = read(empty.path()).unwrap_err().to_string();

        assert!(error.starts_with("card.dir: "), "{error}");
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}
