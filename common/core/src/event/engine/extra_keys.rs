//! What else than tokens an engine put into its hash of a block.
//!
//! vLLM lists, per block, the adapter's name, the cache salt and identifiers of images. Dynamo
//! tags the salts it passes on; a bare text that is not the adapter's name may be anything.

use super::super::msgpack::{Reader, Token};
use super::{Refusal, utf8};

/// The tag in front of a salt that came through Dynamo.
const SALT_TAG: &str = "dynamo-cache-salt:";

/// What the keys of a run say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExtraKeys<'a> {
    /// The salt tagged on the run's first block.
    pub(super) salt: Option<&'a str>,
    /// Leading blocks whose content is tokens, adapter and salt alone.
    pub(super) plain_blocks: usize,
}

/// Reads the keys of a run's blocks, and which of the blocks hold images.
pub(super) fn read<'a>(
    keys: Option<Reader<'a>>,
    mm_infos: Option<Reader<'_>>,
    lora: Option<&str>,
) -> Result<ExtraKeys<'a>, Refusal> {
    let mut found = ExtraKeys {
        salt: None,
        plain_blocks: usize::MAX,
    };
    if let Some(mut keys) = keys {
        for index in 0..keys.array()? {
            let block = read_block(keys.value()?, lora)?;
            if index == 0 {
                found.salt = block.salt;
            }
            if !block.plain {
                found.plain_blocks = usize::try_from(index).unwrap_or(usize::MAX);
                break;
            }
        }
    }
    if let Some(mut infos) = mm_infos {
        for index in 0..infos.array()? {
            if infos.value()?.token()? != Token::Nil {
                let index = usize::try_from(index).unwrap_or(usize::MAX);
                found.plain_blocks = found.plain_blocks.min(index);
                break;
            }
        }
    }
    Ok(found)
}

struct BlockKeys<'a> {
    salt: Option<&'a str>,
    plain: bool,
}

fn read_block<'a>(mut block: Reader<'a>, lora: Option<&str>) -> Result<BlockKeys<'a>, Refusal> {
    let mut found = BlockKeys {
        salt: None,
        plain: true,
    };
    let length = match block.token()? {
        Token::Nil => return Ok(found),
        Token::Array(length) => length,
        _ => return Err(Refusal::Malformed),
    };
    // Only the first match is the adapter's, so that a salt of the same text still counts.
    let mut lora = lora.filter(|name| !name.is_empty());
    for _ in 0..length {
        match block.value()?.token()? {
            Token::Nil => {}
            Token::Str(text) if lora.is_some_and(|name| name.as_bytes() == text) => lora = None,
            Token::Str(text) => match utf8(text)?.strip_prefix(SALT_TAG) {
                Some(salt) => found.salt = Some(salt).filter(|salt| !salt.is_empty()),
                None => found.plain = false,
            },
            _ => found.plain = false,
        }
    }
    Ok(found)
}
